"""What becomes of an exception in a launch: a status, and a reason that names the line of the workspace's own that it comes from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.authoring.catalogue import load_kernels
from harness.authoring.workspace import find_workspace
from harness.errors import KernelFileError
from harness.measure import plugin
from harness.measure.plugin import Progress, Session, _blame
from harness.measure.subject import Reading
from harness.records import Cell, Status

RETURNS = "    return x * 2\n"
LINE = 13
"""Where `double` of the test kernel returns."""


@pytest.fixture
def _fresh_kernels() -> Iterator[None]:
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "kernels"}
    for name in before:
        del sys.modules[name]
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernels"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def blamed(repository: Any, _fresh_kernels: None) -> Callable[[str], tuple[Status, str | None]]:
    """`blamed("raise OSError")`: status and reason of a launcher that runs this in the place of its last line."""

    def run(body: str) -> tuple[Status, str | None]:
        text = (repository.root / "kernels/scale.py").read_text()
        assert text.splitlines(keepends=True)[LINE - 1] == RETURNS
        repository.write("kernels/scale.py", text.replace(RETURNS, f"    {body}\n"))
        kernel = load_kernels(find_workspace(repository.root))["scale"].kernel
        try:
            kernel.variant("double").call(x=None)
        except Exception as error:
            reading = _blame(error)
            return reading.status, reading.reason
        raise AssertionError("it raised nothing")

    return run


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("oot", f"NameError: name 'oot' is not defined (kernels/scale.py:{LINE})"),
        ("torch.empty('x')", f"(kernels/scale.py:{LINE})"),
        ("from kernels._lib import fail; fail()", "ValueError: no (kernels/_lib.py:2)"),
        ("raise OSError(__file__)", f"OSError: kernels/scale.py (kernels/scale.py:{LINE})"),
    ],
    ids=["in the launcher", "in a library that it calls", "in shared code", "with a path in its text"],
)
def test_a_crash_names_the_innermost_line_of_the_workspace(blamed: Any, repository: Any, body: str, expected: str) -> None:
    repository.write("kernels/_lib.py", "def fail():\n    raise ValueError('no')\n")
    status, reason = blamed(body)
    assert Status.CRASH is status
    assert reason.endswith(expected)


def test_a_long_text_does_not_cut_the_line_off(blamed: Any) -> None:
    _, reason = blamed("raise ValueError('x' * 9999)")
    assert reason.endswith(f"x (kernels/scale.py:{LINE})")
    assert len(reason) < 600


def test_what_the_interpreter_wraps_names_the_line_of_the_kernel(blamed: Any, repository: Any) -> None:
    interpreter = (
        "import runpy\n\ndef run(fn):\n    try:\n        fn()\n    except Exception as error:\n        raise RuntimeError from error\n"
    )
    elsewhere = repository.write("../elsewhere/outside_the_workspace.py", interpreter)
    repository.write("kernels/_lib.py", "def kernel():\n    raise ValueError('no')\n")
    body = f"import runpy; from kernels._lib import kernel; runpy.run_path({str(elsewhere)!r})['run'](kernel)"
    assert (Status.CRASH, "RuntimeError: (kernels/_lib.py:2)") == blamed(body)


def test_an_error_of_nobody_in_the_workspace_has_no_line() -> None:
    assert "ValueError: no" == _blame(ValueError("no")).reason
    assert "the inputs: none; name some" == _blame(KernelFileError("the inputs", "none", "name some")).reason


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, (Status.SKIPPED, "why")), (object(), (Status.CRASH, "Skipped: why"))], ids=["by hand", "in a launch"]
)
def test_what_skips_by_hand_is_skipped_and_in_a_launch_passes_nothing(monkeypatch: Any, asked: Any, expected: Any) -> None:
    monkeypatch.setattr(plugin, "launch_request", asked)
    reading = _blame(pytest.skip.Exception("why"))
    assert expected == (reading.status, reading.reason)


def test_what_a_cell_sets_in_torch_does_not_reach_the_next() -> None:
    item: Any = SimpleNamespace(callspec=SimpleNamespace(params={"subject": object()}))
    running = plugin.pytest_runtest_call(item)
    next(running)
    torch.set_default_dtype(torch.float16)
    with pytest.raises(StopIteration):
        running.send(None)
    assert torch.get_default_dtype() == torch.float32


def test_a_cell_that_was_put_aside_counts_the_time_and_the_compilations_of_both_its_parts(monkeypatch: Any) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(plugin, "launch_request", SimpleNamespace(emitter=SimpleNamespace(send=sent.append)))
    now = iter([103.0, 200.0, 205.0])  # put aside, taken up, ended
    monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=lambda: next(now)))
    cell = Cell("scale", "double", "N=8,dtype=fp32", "h200")
    subject: Any = SimpleNamespace(cell=cell, torch_device="cuda")
    compiles: Any = SimpleNamespace(count=2, begin=lambda subject: setattr(compiles, "count", 1))
    session = Session(None, {}, None, progress=Progress([], "then", 100.0), compiles=compiles)  # type: ignore[arg-type]
    plugin._put_aside(session, subject, lambda: [Reading("latency_us", 1.5)])
    plugin._take_up(session, *session.aside[0])
    assert ["aside", "begin", "end"] == [message["type"] for message in sent]
    (reading,) = sent[-1]["readings"]
    assert ("then", 8.0) == (sent[-1]["started_at"], sent[-1]["duration"])
    assert (1.5, 3) == (reading["value"], reading["columns"]["compiles_in_lease"])


@pytest.mark.parametrize(
    ("status", "error", "left"),
    [(Status.CRASH, RuntimeError, [plugin.VOID]), (Status.CRASH, None, []), (Status.WRONG, RuntimeError, [])],
    ids=["void", "a crash of the host alone", "no crash"],
)
def test_a_launch_ends_with_the_cell_that_took_its_gpu(monkeypatch: Any, status: Status, error: type | None, left: list[int]) -> None:
    ended: list[int] = []

    def synchronize() -> None:
        if error is not None:
            raise error("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(plugin.os, "_exit", ended.append)
    monkeypatch.setattr(plugin, "launch_request", SimpleNamespace(emitter=SimpleNamespace(send=lambda message: None)))
    subject: Any = SimpleNamespace(cell=Cell("scale", "double", "N=8,dtype=fp32", "h200"), torch_device="cuda")
    session = Session(None, {}, None, progress=Progress([Reading(None, None, status, "why")], "then", 0.0))  # type: ignore[arg-type]
    plugin._end(session, subject)
    assert ended == left


class TestTheEndOfALaunch:
    """What is sent when every cell has ended: the supervisor counts no time of a launch that did not say that it has closed."""

    @pytest.fixture
    def finish(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
        """Ends a launch whose timer has found `fault`, and does `closes` when it closes; the messages."""

        def run(fault: str | None, closes: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
            sent: list[dict[str, Any]] = []
            monkeypatch.setattr(plugin, "launch_request", SimpleNamespace(emitter=SimpleNamespace(send=sent.append)))
            own = SimpleNamespace(aside=[], timer=SimpleNamespace(fault=fault, close=closes))
            try:
                plugin.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace(stash={plugin.SESSION: own})))  # type: ignore[arg-type]
            except torch.OutOfMemoryError:
                sent.append({"type": "died"})
            return sent

        return run

    def test_is_said(self, finish: Callable[..., Any]) -> None:
        assert [{"type": "closed"}] == finish(None)

    def test_takes_back_what_a_lying_clock_said(self, finish: Callable[..., Any]) -> None:
        assert [{"type": "retract", "reason": "negative_time"}, {"type": "closed"}] == finish("negative_time")

    @pytest.mark.parametrize(("fault", "before"), [(None, []), ("negative_time", [{"type": "retract", "reason": "negative_time"}])])
    def test_is_not_said_where_the_last_canary_fails(self, finish: Callable[..., Any], fault: str | None, before: list[Any]) -> None:
        def fails() -> None:
            raise torch.OutOfMemoryError("the canary's buffers")

        assert [*before, {"type": "died"}] == finish(fault, fails)
