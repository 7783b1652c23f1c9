"""The pytest plugin of job files: options, the `subject`, `record` and `clock` fixtures, and what becomes of a failure.

Inside a launch the engine sets `launch_request` and every cell's readings go to the supervisor. A job file also runs
by itself, `pytest jobs/correctness.py --kernel GLOB --device cpu`, and then the readings are printed.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.authoring.catalogue import as_known, load_kernels, load_kind, load_named, loaded_workspace
from harness.authoring.workspace import find_workspace, read_workspace
from harness.devices.table import Device, load_devices, resolve_devices
from harness.errors import HarnessError, KernelFileError
from harness.measure.by_hand import INTERPRETER, Picked, cells_of, check_histogram, no_job_file
from harness.measure.launch import Emitter
from harness.measure.replay import ReplayClock
from harness.measure.timing import Timer
from harness.records import Cell, Status

if TYPE_CHECKING:
    from harness.authoring.catalogue import Loaded
    from harness.authoring.workspace import Workspace
    from harness.measure.compiles import Compiles
    from harness.measure.subject import Reading, Subject


@dataclass(frozen=True)
class LaunchRequest:
    """What the engine asks of this process; `first`: it is the first launch of its lease; `beside`: figures beside the main one are
    taken too; `puts_off`: what only some launches measure may wait until all cells have their main figure; `engine_cache`: Triton's
    cache of the engine's own kernels."""

    root: Path
    kind: str
    device: str
    cells: tuple[str, ...]
    seed: int
    lease: Path
    first: bool
    beside: bool
    puts_off: bool
    engine_cache: str
    emitter: Emitter


launch_request: LaunchRequest | None = None
"""Set by the engine before it calls pytest; None when a user does."""


@dataclass
class Progress:
    """What happened to the cell in hand."""

    readings: list[Reading] = field(default_factory=list)
    started_at: str = ""
    began: float = 0.0
    spent: float = 0.0
    """Seconds of the part that is over, where the cell was put aside."""
    compiled: int = 0
    """Compilations of that part."""


@dataclass
class Session:
    """The state of one pytest run over a job file."""

    device: Device
    kernels: dict[str, Loaded]
    timer: Timer
    clock: ReplayClock = field(default_factory=ReplayClock)
    progress: Progress = field(default_factory=Progress)
    compiles: Compiles | None = None
    lines: list[str] = field(default_factory=list)
    aside: list[tuple[Subject, Progress, Callable[[], Sequence[Reading]]]] = field(default_factory=list)
    """Cells of which something is left to measure once all have their main figure."""
    refused: HarnessError | None = None
    """Why a run by hand measures nothing; raised once collecting is over, since pytest takes what a collector raises for a crash."""


DEFAULT_SEED = 1
"""Seed of the contents of a run by hand."""

VOID = 7
"""Exit status of a launch that a cell has taken the GPU from."""

SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The filters of a run by hand."""
    group = parser.getgroup("harness")
    filters = {
        "--kernel": "only these kernels (a glob; may be repeated)",
        "--variant": "only these variants (a glob; may be repeated)",
        "--case": "only these cases, as 'M=1,*' (a glob of case keys; may be repeated)",
        "--tag": "only cases with this tag, or one of these (may be repeated)",
    }
    for option, words in filters.items():
        group.addoption(option, action="append", default=[], metavar="NAME", help=words)
    group.addoption(
        "--device", action="append", default=[], metavar="NAME", help="device of devices.toml; cpu, Triton's interpreter, if none"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the device and load the workspace; whatever is wrong with it ends the run with its three-part error."""
    try:
        _refuse_workers(config)
        name = launch_request.device if launch_request else _one_device(config.getoption("--device"))
        if name == INTERPRETER:
            _interpret()
        workspace = read_workspace(launch_request.root) if launch_request else find_workspace(config.invocation_params.dir)
        device = load_devices()[name]
        asked = launch_request
        timer = (
            Timer(device, asked.seed, asked.lease, first=asked.first, beside=asked.beside, engine_cache=asked.engine_cache)
            if asked
            else Timer(device, DEFAULT_SEED, None)
        )
        kernels = load_named(workspace, {Cell.parse(cell).kernel for cell in asked.cells}) if asked else load_kernels(workspace)
        if not asked:
            Picked.by(config).check_names(loaded.kernel for loaded in kernels.values())
            check_histogram(config)
        config.stash[SESSION] = Session(device, kernels, timer)
    except HarnessError as error:
        raise pytest.UsageError(as_known(str(error), launch_request.root) if launch_request else str(error)) from error
    if launch_request:
        from harness.measure.environment import environment, node_name

        static = launch_request.kind == "static"
        found = environment(device.triton_target, on_unit=not static and device.name != "cpu")
        launch_request.emitter.send({"type": "environment", "environment": found, "node": node_name()})


def _refuse_workers(config: pytest.Config) -> None:
    workers = getattr(config.option, "numprocesses", None)
    if workers or hasattr(config, "workerinput"):
        found = "job files measure, and the workers of pytest-xdist share the device"
        raise HarnessError(f"-n {workers}" if workers else "pytest-xdist", found, "run it without pytest-xdist (-n)")


def _one_device(names: Sequence[str]) -> str:
    found = resolve_devices(names or [INTERPRETER], load_devices())
    if len(found) != 1:
        asked = " ".join(f"--device {name}" for name in names)
        raise HarnessError(asked, f"these are {', '.join(found)}: by hand a job file runs on one device", "name one of them")
    return found[0]


def _interpret() -> None:
    if "triton" in sys.modules:
        from triton import knobs

        if not knobs.runtime.interpret:
            found = "triton was imported before TRITON_INTERPRET was set"
            raise HarnessError("device cpu, which is Triton's interpreter", found, "set TRITON_INTERPRET=1 for the whole run")
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a cell."""
    if "subject" in metafunc.fixturenames:
        session = metafunc.config.stash[SESSION]
        subjects: list[Subject] = []
        try:
            subjects = _subjects(metafunc.config, Path(metafunc.module.__file__ or ""))
        except HarnessError as error:
            session.refused = session.refused or error
        metafunc.parametrize("subject", subjects, ids=[str(s.cell) for s in subjects], indirect=False)


def _subjects(config: pytest.Config, job_file: Path) -> list[Subject]:
    """The cells to measure; without any, or without a device that runs them, a run by hand is refused."""
    from harness.measure.subject import Subject

    kind = load_kind(job_file)
    session = config.stash[SESSION]
    device = session.device
    where = "meta" if kind.on == "host" else "cpu" if device.name == INTERPRETER else "cuda"
    kernels = {name: loaded.kernel for name, loaded in session.kernels.items()}
    if launch_request is not None:
        asked = [Cell.parse(text) for text in launch_request.cells]
        cells = [(kernels[cell.kernel], cell.variant, kernels[cell.kernel].case(cell.case)) for cell in asked]
    else:
        cells = cells_of(Picked.by(config), kernels, job_file.stem, kind, device)
    return [Subject(kernel, variant, case, device, where) for kernel, variant, case in cells]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let pytest-benchmark read the replayed device time; refuse what collecting found cannot be measured."""
    if (refused := config.stash[SESSION].refused) is not None:
        raise pytest.UsageError(str(refused))
    for item in items:
        if "benchmark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.benchmark(timer=config.stash[SESSION].clock))


@pytest.fixture
def timer(request: pytest.FixtureRequest) -> Timer:
    """Times the cell in hand."""
    return request.config.stash[SESSION].timer


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> ReplayClock:
    """The timer through which measured samples reach pytest-benchmark."""
    return request.config.stash[SESSION].clock


class Recorder:
    """`record(readings)`: stores what was measured of the cell in hand; called once a cell, or more often."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, readings: Sequence[Reading]) -> None:
        """Store the readings."""
        self._progress.readings.extend(readings)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Recorder:
    """Stores the readings of the cell in hand."""
    return Recorder(request.config.stash[SESSION].progress)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Say which cell begins, so that a crash or a hang has a name."""
    session = item.config.stash[SESSION]
    session.progress = Progress([], datetime.now(UTC).isoformat(), time.monotonic())
    subject = _subject_of(item)
    if subject is not None:
        once = launch_request is not None and launch_request.puts_off and subject.cell not in {one.cell for one, _, _ in session.aside}
        session.timer.puts_off = subject.cell if once else None
        _begin(session, subject)


def _begin(session: Session, subject: Subject) -> None:
    if launch_request:
        launch_request.emitter.send({"type": "begin", "cell": str(subject.cell)})
    if subject.torch_device == "cuda":
        from harness.measure.compiles import Compiles

        session.compiles = session.compiles or Compiles(launch_request.engine_cache if launch_request else None)
        session.compiles.begin(subject)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Put torch's settings back once a cell has run: those that it changed are not the next one's."""
    if _subject_of(item) is None:
        return (yield)
    from harness.measure.torch_state import kept

    with kept():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Send what was recorded of a cell once its test has run; an exception that recorded nothing becomes a status."""
    report = yield
    subject = _subject_of(item)
    done = call.when == "call" or (call.when == "setup" and call.excinfo is not None)
    if subject is None or not done:
        return report
    session = item.config.stash[SESSION]
    progress = session.progress
    rest = session.timer.put_off.pop(subject.cell, None)
    if rest is not None and call.excinfo is None:
        _put_aside(session, subject, rest)
        return report
    failed = [r for r in progress.readings if r.status is not Status.OK]
    if call.excinfo is not None and not failed:
        progress.readings.append(_blame(call.excinfo.value))
    elif not progress.readings:
        progress.readings.append(_reading(Status.INVALID, "the job file recorded nothing"))
    elif launch_request is None and {r.status for r in progress.readings} == {Status.OK, Status.SKIPPED}:
        report.outcome, report.longrepr = "passed", None  # a job file fails what is not ok, and a figure that is left out is no failure
    _end(session, subject)
    return report


def _put_aside(session: Session, subject: Subject, rest: Callable[[], Sequence[Reading]]) -> None:
    progress = session.progress
    progress.spent = time.monotonic() - progress.began
    progress.compiled = session.compiles.count if session.compiles else 0
    session.aside.append((subject, progress, rest))
    if launch_request:
        launch_request.emitter.send({"type": "aside", "cell": str(subject.cell)})


def _take_up(session: Session, subject: Subject, progress: Progress, rest: Callable[[], Sequence[Reading]]) -> None:
    """Measure what was put off of a cell."""
    session.progress, progress.began = progress, time.monotonic()
    _begin(session, subject)
    try:
        progress.readings.extend(rest())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as pytest does in a test
        progress.readings.append(_blame(error))
    _end(session, subject)


def _end(session: Session, subject: Subject) -> None:
    """Send what was recorded of the cell in hand."""
    progress = session.progress
    compiled = {"compiles_in_lease": progress.compiled + session.compiles.count} if session.compiles else {}
    message = {
        "type": "end",
        "cell": str(subject.cell),
        "readings": [{**vars(r), "columns": compiled | dict(r.columns)} for r in progress.readings],
        "started_at": progress.started_at,
        "duration": progress.spent + time.monotonic() - progress.began,
    }
    if launch_request:
        launch_request.emitter.send(message)
        _leave_if_void(subject, progress)
    else:
        session.lines += [_line(subject, r) for r in progress.readings]


def _leave_if_void(subject: Subject, progress: Progress) -> None:
    """End the process where a failure has taken the GPU from it: every call would fail, and other cells be blamed for it. Those that
    have not ended run in another launch."""
    if subject.torch_device == "cuda" and any(r.status is Status.CRASH for r in progress.readings):
        import torch

        try:
            torch.cuda.synchronize()
        except RuntimeError:
            os._exit(VOID)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Take up what was put off; hand what was found out about the unit to the next launch; take back every figure of a launch whose
    clock was wrong; and say that the launch has closed: what it timed counts then, and not before."""
    if SESSION not in session.config.stash:
        return
    own = session.config.stash[SESSION]
    for subject, progress, rest in own.aside:
        _take_up(own, subject, progress, rest)
    timer = own.timer
    try:
        timer.close()
    finally:
        if launch_request and timer.fault:
            launch_request.emitter.send({"type": "retract", "reason": timer.fault})
    if launch_request:
        launch_request.emitter.send({"type": "closed"})


def _subject_of(item: pytest.Item) -> Subject | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("subject") if callspec else None


def _reading(status: Status, reason: str) -> Reading:
    from harness.measure.subject import Reading

    return Reading(None, None, status, reason)


def _blame(error: BaseException) -> Reading:
    import torch
    from triton.errors import TritonError

    known = isinstance(error, KernelFileError)
    words = f"{error.asked}: {error.found}; {error.do}" if isinstance(error, KernelFileError) else f"{type(error).__name__}: {error}"
    words = " ".join(words.split())[:500]
    if workspace := loaded_workspace():
        place = None if known else _place(error, workspace)  # such an error names the place itself, which is not where it was noticed
        words = as_known(words, workspace.root) + (f" ({place})" if place else "")
    text = words.encode("utf-8", "backslashreplace").decode()
    # by hand alone: in a launch nobody but the code under test skips, and must not pass by it
    if isinstance(error, pytest.skip.Exception) and launch_request is None:
        return _reading(Status.SKIPPED, str(error))
    if isinstance(error, torch.OutOfMemoryError):
        return _reading(Status.OOM, text)
    if isinstance(error, TritonError):
        return _reading(Status.BUILD_FAILED, text)
    if isinstance(error, AssertionError):
        return _reading(Status.WRONG, text)
    return _reading(Status.CRASH, text)


def _place(error: BaseException, workspace: Workspace) -> str | None:
    """The innermost line of the workspace's own files that an error comes from, as `kernels/axpy.py:35`; None where there is none.

    What Triton's interpreter raises has the line of the launch, and its cause that of the kernel.
    """
    own = [workspace.root / path for path in workspace.code_paths]
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if any(Path(frame.filename).is_relative_to(path) for path in own)]
    if error.__cause__ is not None and mine[-1:] != frames[-1:] and (deeper := _place(error.__cause__, workspace)):
        return deeper
    return f"{Path(mine[-1].filename).relative_to(workspace.root)}:{mine[-1].lineno}" if mine else None


def _line(subject: Subject, reading: Reading) -> str:
    value = "-" if reading.value is None else f"{reading.value:.6g}"
    reason = f" ({reading.reason})" if reading.reason else ""
    return f"{subject.cell} {reading.metric or '-'} {value} {reading.status}{reason}"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say on which device a run by hand measures."""
    if launch_request or SESSION not in config.stash:
        return None
    name = config.stash[SESSION].device.name
    return f"device: {name}" + (" (Triton's interpreter; a GPU: --device NAME)" if name == INTERPRETER else "")


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the readings of a run by hand; where pytest found no test, say where they are."""
    lines = config.stash[SESSION].lines if SESSION in config.stash else []
    if lines:
        terminalreporter.section("readings")
        for line in lines:
            terminalreporter.write_line(line)
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not launch_request and not terminalreporter.stats.get("deselected"):
        terminalreporter.write_line(str(no_job_file(config)))
