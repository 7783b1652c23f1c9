"""A diff as a GitHub check run: conclusion, title, summary, annotations, and the bodies of the requests; from its JSON alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from harness.report import words
from harness.report.markdown import CHECK_LIMIT, code, render_markdown

STEP_LIMIT = 1 << 20
"""Bytes of a step summary; GitHub drops all of a longer one."""
ANNOTATIONS_LIMIT = 50
"""Annotations of one request; GitHub refuses more."""
ANNOTATIONS_SHOWN = 500
"""Annotations of one check run, the worst first: ten requests; nobody reads more, and the summary has the rows."""
TITLE_LIMIT = 255
"""Characters of a title."""
MARK = "kernel-harness"
"""What `external_id` says of our check runs: one of that name which another program has marked is left alone."""

_BREAK = "&#8203;"
"""A zero-width space. GitHub looks for mentions, references and mail addresses in what Markdown made of a text, where an entity is
the sign itself again; for web addresses it looks before."""
_LIVE = re.compile(r"(?P<span>(?<!`)(`+)(?!`).+?(?<!`)\2(?!`))|(?P<issue>\b(?i:gh)-(?=\d))|:(?=//)|(?<=ww)w|[&<@#\\`\[\]]")
"""A code span, in which GitHub finds nothing, or what may begin a mention, a link or HTML outside of one."""
_INERT = {"&": "&amp;", "<": "&lt;", "@": f"&#64;{_BREAK}", "#": f"#{_BREAK}", ":": "&#58;", "w": "&#119;"}

_CELLS = 20
"""Cells that one annotation lists; the summary has them all."""

Body = dict[str, Any]


class Conclusion(StrEnum):
    """What a check run concludes. Never `skipped`, which GitHub takes for a pass."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    CANCELLED = "cancelled"


def conclude(exit_code: int, *, neutral_when_undecided: bool = False) -> Conclusion:
    """The conclusion of an exit code: total, and success for 0 alone.

    Args:
        neutral_when_undecided: 3 is neutral, which a branch rule lets pass, rather than failure.
    """
    if exit_code == 3 and neutral_when_undecided:
        return Conclusion.NEUTRAL
    return {0: Conclusion.SUCCESS, 130: Conclusion.CANCELLED}.get(exit_code, Conclusion.FAILURE)


def opening(details_url: str | None) -> Body:
    """The body that puts a check run in progress; one that is created needs `name` and `head_sha` beside it."""
    body: Body = {"external_id": MARK, "status": "in_progress"}
    return body | ({"details_url": details_url} if details_url else {})


def concluding(diff: Mapping[str, Any], conclusion: Conclusion, annotations: Sequence[Body]) -> list[Body]:
    """The bodies that conclude a check run: the first has the verdict, the others the annotations it has no room for."""
    output = {"title": title(diff), "summary": summary(diff)}
    starts = range(0, max(len(annotations), 1), ANNOTATIONS_LIMIT)
    first, *more = [list(annotations[n : n + ANNOTATIONS_LIMIT]) for n in starts]
    bodies: list[Body] = [
        {"status": "completed", "conclusion": str(conclusion), "output": output | ({"annotations": first} if first else {})}
    ]
    return bodies + [{"output": output | {"annotations": batch}} for batch in more]


def concluding_error(asked: str, found: str, do: str, conclusion: Conclusion) -> Body:
    """The body that concludes a check run where there is no diff, only an error."""
    output = {"title": _cut(f"no verdict: {words.one_line(asked)}", TITLE_LIMIT), "summary": error_summary(asked, found, do)}
    return {"status": "completed", "conclusion": str(conclusion), "output": output}


def error_summary(asked: str, found: str, do: str) -> str:
    """An error as Markdown."""
    parts = (("asked", asked), ("found", found), ("do next", do))
    return "\n".join(["## :grey_question: Kernels: no verdict", "", *(f"- {name}: {code(_cut(text, 4000))}" for name, text in parts)])


def title(diff: Mapping[str, Any]) -> str:
    """`fail: 1 BROKEN, 5 REGRESSED`: the verdicts that make the conclusion, else how much was compared; then what marks the run."""
    counting: dict[str, int] = {}
    for finding in diff["findings"]:
        if diff["exit_code"] and finding["exit_code"] == diff["exit_code"]:
            counting[finding["verdict"]] = counting.get(finding["verdict"], 0) + 1
    parts = [f"{n} {verdict}" for verdict, n in counting.items()]
    rest = ", ".join(parts) or next(iter(diff["conclusion"]), "").partition(": ")[2]
    marked = ", ".join(dict.fromkeys(mark["suspicion"] for mark in diff.get("marks", ())))
    end = f"; marked {marked}" if marked else ""
    return _cut(f"{words.CONCLUSIONS[diff['exit_code']]}: {words.one_line(rest)}", TITLE_LIMIT - len(end)) + end


def summary(diff: Mapping[str, Any], limit: int = CHECK_LIMIT) -> str:
    """The report in at most `limit` bytes of Markdown, where no text of the diff is a mention, a link or HTML.

    Rows are cut whole and counted; where there is no room even for the headings, it says that alone.
    """
    plain = {name: [_inert(line) for line in diff[name]] for name in ("conclusion", "notes", "rules")}
    reasons = {name: _inert(text) for name, text in diff["reasons"].items()}
    marks = [mark | {name: _inert(mark[name]) for name in ("detail", "do")} for mark in diff.get("marks", ())]
    try:
        return render_markdown({**diff, **plain, "reasons": reasons, "marks": marks}, limit=limit)
    except ValueError:
        word = words.CONCLUSIONS[diff["exit_code"]]
        return f"## Kernels: {word}\n\nThe headings of the report alone are longer than {limit} bytes; the JSON has it."


def annotate(diff: Mapping[str, Any]) -> list[Body]:
    """One annotation for every set of findings that count and say the same of one variant, on its kernel's line at head.

    Kernels that `sources` does not place have none; the summary has their rows.
    """
    sources = diff.get("sources", {})
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for finding in diff["findings"]:
        kernel, variant = finding["cell"].split("/")[:2]
        if finding["exit_code"] and kernel in sources:
            key = (kernel, variant, finding["kind"], finding["metric"], finding["verdict"], finding["reason"])
            groups.setdefault(key, []).append(finding)
    return [_annotation(sources[key[0]], key, members, diff["reasons"][key[-1]]) for key, members in groups.items()]


def identity(annotation: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two annotations the same: GitHub adds what it is sent to what is there, and takes nothing away."""
    return tuple(annotation.get(name) for name in ("path", "start_line", "annotation_level", "title", "message"))


def _annotation(place: Mapping[str, Any], key: tuple[str, ...], members: Sequence[Mapping[str, Any]], sentence: str) -> Body:
    kernel, variant, _, metric, verdict, reason = key
    lines = [f"{verdict} ({reason}): {words.one_line(sentence)}", *map(_line, members[:_CELLS])]
    if len(members) > _CELLS:
        lines.append(f"and {words.count(len(members) - _CELLS, 'more cell')}")
    if command := members[0]["why"].get("reproduce"):
        lines.append(words.one_line(command))
    return {
        "path": place["path"],
        "start_line": place["line"],
        "end_line": place["line"],
        "annotation_level": "failure" if any(f["exit_code"] == 1 for f in members) else "warning",
        "title": _cut(f"{kernel}/{variant}: {metric} {verdict} on {words.count(len(members), 'cell')}", TITLE_LIMIT),
        "message": "\n".join(_cut(line, 1000) for line in lines),
    }


def _line(finding: Mapping[str, Any]) -> str:
    values = f"{words.number(finding['base'])} -> {words.number(finding['head'])}"
    moved = "" if finding["ratio"] is None else f" ({words.change(finding)})"
    detail = words.one_line(finding["detail"])
    return f"{finding['cell']}: {values}{moved}" + (f"; {detail}" if detail else "")


def _inert(text: str) -> str:
    """Text on one line in which nothing mentions, links or is HTML; code spans stay as they are, and no other backtick opens one."""
    return _LIVE.sub(lambda m: m["span"] or (m["issue"] and f"{m['issue']}{_BREAK}") or _INERT.get(m[0], f"\\{m[0]}"), words.one_line(text))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
