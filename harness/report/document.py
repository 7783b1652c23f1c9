"""Reads a diff's JSON back from a file, which may come from code that nobody has reviewed: nothing in it is trusted but its shape."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import HarnessError
from harness.judge.conclude import COMPARED, UNCOMPARED, is_new_and_right
from harness.judge.model import Reason, Suspicion, Verdict
from harness.metrics import Rule
from harness.records import Cell
from harness.report.json import FORMAT

SIZE_LIMIT = 64 << 20
"""Bytes of a document; a diff of ten thousand cells has about eight million."""
TEXT_LIMIT = 20_000
"""Characters of one text in it."""
MAX = sys.float_info.max

_AGAIN = "make it with `harness diff A..B --format json > FILE`"

Check = Callable[[Any], None]


class DocumentError(HarnessError):
    """A file is not a diff's JSON, or not one that this harness reads."""


class _Wrong(Exception):
    """What is wrong with a value; `where` grows outwards."""

    def __init__(self, what: str) -> None:
        self.where: list[str] = []
        self.what = what


def read_document(file: Path) -> dict[str, Any]:
    """The document that `harness diff --format json` wrote to `file`.

    Raises:
        DocumentError: it cannot be read, is no JSON, is of a newer format, has another shape, or contradicts itself.
    """
    asked = f"the diff {file}"
    try:
        with file.open("rb") as stream:
            data = stream.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise DocumentError(asked, error.strerror or str(error), _AGAIN) from error
    if len(data) > SIZE_LIMIT:
        raise DocumentError(asked, f"more than {SIZE_LIMIT >> 20} MiB", "compare fewer cells (--matrix, --metric)")
    if not data.strip():
        raise DocumentError(asked, "an empty file: the diff ended without a result", "read what it said on standard error")
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DocumentError(asked, f"no JSON: {error}", _AGAIN) from error
    found = document.get("format") if isinstance(document, dict) else None
    if isinstance(found, int) and not isinstance(found, bool) and found > FORMAT:
        raise DocumentError(
            asked, f"format {found}; this harness reads format {FORMAT}", "install a newer harness, or make the diff with this one"
        )
    try:
        _DOCUMENT(document)
        _agree(document)
    except _Wrong as error:
        place = ".".join(reversed(error.where)) or "the document"
        raise DocumentError(asked, f"{place}: {error.what}", _AGAIN) from None
    return dict(document)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _agree(document: Mapping[str, Any]) -> None:
    """What the document says in several places must be the same.

    Raises:
        _Wrong: it is not.
    """
    effects = {f["exit_code"] for f in document["findings"]}
    worst = 1 if 1 in effects else 3 if 3 in effects else None
    if worst is not None and document["exit_code"] != worst:
        raise _Wrong(f"exit_code {document['exit_code']}, though a finding makes it {worst}")
    if document["exit_code"] == 0 and not _decides(document["findings"]):
        raise _Wrong("exit_code 0, though no finding compares anything")
    counted = Counter(f["verdict"] for f in document["findings"])
    if dict(counted) != {verdict: n for verdict, n in document["counts"].items() if n}:
        raise _Wrong("counts are not those of the findings")
    met = {f["reason"] for f in document["findings"]} | {reason for row in document["coverage"] for reason in row["others"]}
    if unexplained := sorted(met - set(document["reasons"])):
        raise _Wrong(f"reasons do not explain {unexplained[0]!r}")


def _decides(findings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether findings that fail nothing make a pass, see `harness.judge.conclude.conclude`."""
    if any(f["verdict"] in COMPARED and f["reason"] not in UNCOMPARED for f in findings):
        return True
    return any(f["reason"] == Reason.SAME_CODE for f in findings) and any(
        is_new_and_right(f["verdict"], f["reason"], f["kind"]) for f in findings
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise _Wrong(f"{_shown(value)} is not a text")
    if len(value) > TEXT_LIMIT:
        raise _Wrong(f"a text of {len(value)} characters; at most {TEXT_LIMIT} are read")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise _Wrong(f"{_shown(value)} has half a character")


def _form(pattern: str) -> Check:
    compiled = re.compile(pattern)

    def check(value: Any) -> None:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise _Wrong(f"{_shown(value)} is not of the form {pattern}")

    return check


def _number(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX <= value <= MAX:
        raise _Wrong(f"{_shown(value)} is not a finite number")


def _count(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise _Wrong(f"{_shown(value)} is not a count")


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise _Wrong(f"{_shown(value)} is not true or false")


def _cell(value: Any) -> None:
    _text(value)
    try:
        Cell.parse(value)
    except ValueError as error:
        raise _Wrong(str(error)) from None


def _one_of(*values: Any) -> Check:
    def check(value: Any) -> None:
        if isinstance(value, bool) or value not in values:
            raise _Wrong(f"{_shown(value)} is not one of {', '.join(map(str, values))}")

    return check


def _optional(shape: Check) -> Check:
    def check(value: Any) -> None:
        if value is not None:
            shape(value)

    return check


def _list(shape: Check, length: int | None = None) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise _Wrong(f"{_shown(value)} is not a list" + ("" if length is None else f" of {length}"))
        for n, item in enumerate(value):
            _inside(str(n), shape, item)

    return check


def _mapping(shape: Check, key: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _Wrong(f"{_shown(value)} is not an object")
        for name, item in value.items():
            key(name)
            _inside(name, shape, item)

    return check


def _object(**shapes: Check) -> Check:
    """An object with these keys at least; one whose name starts with `maybe_` may be absent."""

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _Wrong(f"{_shown(value)} is not an object")
        for key, shape in shapes.items():
            name = key.removeprefix("maybe_")
            if name in value:
                _inside(name, shape, value[name])
            elif name == key:
                raise _Wrong(f"no {name!r}")

    return check


def _inside(name: str, shape: Check, value: Any) -> None:
    try:
        shape(value)
    except _Wrong as error:
        error.where.append(name)
        raise


def _changed(value: Any) -> None:
    """Base's and head's value of what ran: a text, or a list with one for every kernel launch."""
    if not isinstance(value, list) or len(value) != 2:
        raise _Wrong(f"{_shown(value)} is not a list of 2")
    for side in value:
        (_list(_text) if isinstance(side, list) else _text)(side)


def _why(value: Any) -> None:
    if value != {}:  # of what needs no explanation nothing is said
        _WHY(value)


_WORD = _form(r"[A-Za-z0-9_]{1,100}")
_METRIC = _form(r"[A-Za-z0-9_]{1,100}(@[0-9]{1,9})?")
_VERDICT = _one_of(*map(str, Verdict))
_RULE = _one_of(*map(str, Rule))
_EFFECT = _one_of(0, 1, 3)
_SIDE = _object(ref=_text, commit=_optional(_form(r"[0-9a-f]{7,64}")), code_digest=_form(r"[0-9A-Za-z]*"), distance=_count, dirty=_flag)
_CHOICE = _object(
    config=_list(_text),
    chosen=_list(_count, 2),
    compared=_list(_count, 2),
    base=_optional(_number),
    head=_optional(_number),
    ratio=_optional(_number),
    absent=_optional(_text),
)
_WHY = _object(
    metrics=_mapping(_list(_optional(_number), 2), _METRIC),
    changed=_mapping(_changed, _WORD),
    maybe_reproduce=_text,
    maybe_same_configuration=_list(_CHOICE),
)
_MARK = _object(
    suspicion=_one_of(*map(str, Suspicion)),
    device=_WORD,
    slower=_count,
    faster=_count,
    of=_count,
    kernels=_count,
    detail=_text,
    do=_text,
    reproduce=_text,
)
_FINDING = _object(
    cell=_cell,
    device=_WORD,
    kind=_WORD,
    metric=_METRIC,
    unit=_text,
    rule=_RULE,
    verdict=_VERDICT,
    reason=_WORD,
    detail=_optional(_text),
    base=_optional(_number),
    head=_optional(_number),
    ratio=_optional(_number),
    interval=_optional(_list(_number, 2)),
    exit_code=_EFFECT,
    why=_why,
)
_MEAN = _object(metric=_METRIC, device=_WORD, rule=_RULE, n=_count, of=_count, ratio=_number)
_LINE = _object(path=_form(r"(?!/)(?!(.*/)?\.\.(/|$))[^\\\x00-\x1f]{1,1000}"), line=_count)
_DOCUMENT = _object(
    format=_one_of(FORMAT),
    base=_SIDE,
    head=_SIDE,
    exit_code=_EFFECT,
    conclusion=_list(_text),
    maybe_marks=_list(_MARK),
    notes=_list(_text),
    counts=_mapping(_count, _VERDICT),
    gpus=_mapping(_flag, _WORD),
    coverage=_list(_object(device=_WORD, kind=_WORD, cells=_count, compared=_count, others=_mapping(_count, _WORD))),
    summary=_object(means=_list(_MEAN), noise=_optional(_object(n=_count, mean=_number, lowest=_number, highest=_number))),
    findings=_list(_FINDING),
    reasons=_mapping(_text, _WORD),
    rules=_list(_text),
    maybe_sources=_mapping(_LINE, _WORD),
)
