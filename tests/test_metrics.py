"""docs/metrics.md holds every row of the table of metrics, in its words.

`UPDATE_GOLDENS=1 pytest tests/test_metrics.py` writes its tables anew; read the change before you commit it.
"""

import os
import re
from pathlib import Path

import pytest

from harness.metrics import METRICS, Rule

DOCUMENT = Path(__file__).parent.parent / "docs/metrics.md"
JUDGED = {Rule.TIME: "in pairs", Rule.ERROR: "error", Rule.GROWTH: "growth over 10 %", Rule.ANY_GROWTH: "any growth", Rule.CONTEXT: ""}
TABLES = {
    kind: "\n".join(
        [
            "| metric | unit | better | judged by | what it is |",
            "|---|---|---|---|---|",
            *(
                f"| `{row.name}` | {row.unit} | {row.better} | {JUDGED[row.rule]} | {row.how} |"
                for row in METRICS.values()
                if row.kind == kind
            ),
        ]
    )
    for kind in dict.fromkeys(row.kind for row in METRICS.values())
}


def section(kind, text):
    """The heading of a kind, what stands before its table, and the table."""
    return re.search(rf"(?<=\n## {kind.capitalize()}\n)((?:(?!\n## )[^|])*)((?:\|.*\n)+)", text)


@pytest.mark.parametrize("kind", TABLES)
def test_every_metric_of_a_kind_is_documented(kind):
    text = DOCUMENT.read_text()
    found = section(kind, text)
    assert found, f"docs/metrics.md has no table below '## {kind.capitalize()}'"
    if os.environ.get("UPDATE_GOLDENS"):
        DOCUMENT.write_text(text[: found.start(2)] + TABLES[kind] + "\n" + text[found.end(2) :])
        return
    assert TABLES[kind] + "\n" == found[2]


def test_no_other_metric_is_documented():
    named = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(METRICS) == sorted(named)
