"""Small inputs with the right answer, from bugs that other tools had: each is shown by a test that is named after it."""

from __future__ import annotations

import json
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_case_of_measuring_has_a_test_of_its_name() -> None:
    cases = {json.loads(line)["id"] for line in (TESTS / "cases/measure.jsonl").read_text().splitlines()}
    shown = {name for file in TESTS.rglob("test_*.py") for name in re.findall(r"^ *def test_(m\d\d)_", file.read_text(), re.MULTILINE)}
    assert cases == shown & cases
    assert shown == shown & cases, "a test names a case that is not there"
