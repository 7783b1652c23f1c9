"""What becomes of cells when launches misbehave: the local dispatcher, with real fork servers and launches."""

import os
import signal
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from harness.authoring.workspace import find_workspace
from harness.dispatch.local import LocalDispatcher
from harness.dispatch.run import describe_run, execute, new_run_id
from harness.plan.matrix import Filters
from harness.plan.plan import make_plan


class MemoryStore:
    """Keeps what a run writes."""

    def __init__(self):
        self.saved, self.written = [], []

    def save(self, run):
        self.saved.append(run)

    def write(self, run, records, *, replace=False):
        self.written.append((run, records))


def run(repository, slots=1, observe=lambda event: None):
    """Run the repository's matrix; one variant's two cpu cases: N=8, then N=9."""
    workspace = find_workspace(repository.root)
    plan = make_plan(workspace, "worktree", "all", Filters())
    now = datetime.now(UTC)
    description = describe_run(plan, new_run_id(now), now, {})
    return execute(plan, LocalDispatcher(slots), MemoryStore(), description, workspace.runs_dir / description["run_id"], observe=observe)


def statuses(outcome):
    """(variant, N) -> status and reason."""
    return {(r.variant, r.case.split(",")[0]): (r.status, r.reason) for r in outcome.records}


@pytest.fixture(autouse=True)
def _one_variant(repository):
    text = (repository.root / "kernels/scale.py").read_text()
    one = text.replace('"twice": Variant(twice, triton=False)', "").replace('baseline="twice"', 'baseline="double"')
    repository.write("kernels/scale.py", one)


def test_every_cell_ends_with_a_record_and_the_run_with_zero(repository):
    repository.job("pass")
    outcome = run(repository)
    assert statuses(outcome) == {("double", "N=8"): ("ok", None), ("double", "N=9"): ("ok", None)}
    assert outcome.exit_code == 0


def test_a_record_says_where_it_comes_from(repository):
    repository.job("pass")
    record = run(repository).records[0]
    head = repository.git("rev-parse", "HEAD")
    assert (record.commit, record.dirty, record.device, record.unit, record.node) == (head, True, "cpu", "cpu:0", os.uname().nodename)
    assert record.environment["triton"]
    assert record.code_digest


def test_a_crash_costs_its_own_cell_and_the_next_runs(repository):
    repository.job("if subject.case.N == 8: os.kill(os.getpid(), signal.SIGSEGV)")
    outcome = run(repository)
    assert statuses(outcome) == {("double", "N=8"): ("crash", "killed by SIGSEGV"), ("double", "N=9"): ("ok", None)}
    assert outcome.exit_code == 1


def test_a_crash_runs_once(repository, tmp_path):
    repository.job(f"Path = __import__('pathlib').Path; Path({str(tmp_path)!r}, str(time.time_ns())).touch(); os.abort()")
    run(repository)
    assert len([f for f in tmp_path.iterdir() if f.name.isdigit()]) == 2


def test_a_hang_that_ignores_signals_is_killed_at_its_deadline_and_the_next_runs(repository):
    repository.job(
        "if subject.case.N == 8: [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)], time.sleep(600)", deadline=5.0
    )
    outcome = run(repository)
    assert statuses(outcome) == {("double", "N=8"): ("timeout", "no end within 5 s"), ("double", "N=9"): ("ok", None)}


def test_an_exception_is_a_crash_with_its_text_and_line(repository):
    repository.job("if subject.case.N == 9: raise ValueError('no such slot')")
    assert statuses(run(repository))["double", "N=9"] == ("crash", "ValueError: no such slot (jobs/correctness.py:14)")


def test_an_exit_in_the_middle_is_no_silence(repository):
    repository.job("if subject.case.N == 8: os._exit(0)")
    status, reason = statuses(run(repository))["double", "N=8"]
    assert (status, reason.split(":")[0]) == ("crash", "exit status 0")


def test_a_job_that_records_nothing_is_invalid(repository):
    repository.job("return")
    outcome = run(repository)
    assert {status for status, _ in statuses(outcome).values()} == {"invalid"}
    assert outcome.exit_code == 3


def test_a_broken_job_in_the_launch_is_infrastructure_and_ends(repository):
    repository.job("pass")
    text = (repository.root / "jobs/correctness.py").read_text()
    broken = "import os\nif 'PYTEST_DISABLE_PLUGIN_AUTOLOAD' in os.environ: raise OSError('only here')\n"
    repository.write("jobs/correctness.py", text.replace("import os\n", broken))
    outcome = run(repository)
    assert Counter(status for status, _ in statuses(outcome).values()) == {"infra": 2}
    assert "only here" in outcome.records[0].reason
    assert outcome.exit_code == 3


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_run(repository):
    repository.job("os.fork() or (os.setsid(), time.sleep(120), os._exit(0))")
    began = time.monotonic()
    assert run(repository).exit_code == 0
    assert time.monotonic() - began < 60


def test_a_launch_sees_no_variable_that_is_not_allowed(repository, monkeypatch):
    monkeypatch.setenv("CANARY_TOKEN", "secret")
    repository.job("assert 'CANARY_TOKEN' not in os.environ and os.environ['HOME'] != '/root'")
    assert run(repository).exit_code == 0


def test_cancelling_kills_what_runs_and_says_cancelled_of_the_rest(repository):
    repository.job("time.sleep(120 if subject.case.N == 9 else 0)")
    dispatcher = LocalDispatcher(1)
    workspace = find_workspace(repository.root)
    plan = make_plan(workspace, "worktree", "all", Filters())
    now = datetime.now(UTC)
    description = describe_run(plan, new_run_id(now), now, {})
    began = time.monotonic()
    outcome = execute(
        plan,
        dispatcher,
        MemoryStore(),
        description,
        workspace.runs_dir / description["run_id"],
        observe=lambda event: os.kill(os.getpid(), signal.SIGINT),
    )
    assert statuses(outcome) == {("double", "N=8"): ("ok", None), ("double", "N=9"): ("cancelled", "the run was stopped")}
    assert outcome.exit_code == 130
    assert time.monotonic() - began < 90


def test_a_run_that_may_outlive_its_terminal_does(repository):
    """As under `nohup`."""
    repository.job("pass")
    workspace = find_workspace(repository.root)
    plan, now = make_plan(workspace, "worktree", "all", Filters()), datetime.now(UTC)
    description = describe_run(plan, new_run_id(now), now, {})
    folder = workspace.runs_dir / description["run_id"]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hang_up = partial(os.kill, os.getpid(), signal.SIGHUP)
        outcome = execute(plan, LocalDispatcher(1), MemoryStore(), description, folder, observe=lambda event: hang_up())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcome.exit_code == 0


@pytest.mark.parametrize(
    "message",
    ['{"type": "end"}', "no json", '{"type": "begin", "cell": "a/b/dtype=fp32@cpu"}', "[1]", '{"type": "x", "value": NaN}'],
    ids=["torn", "not json", "another cell", "a list", "NaN"],
)
def test_a_hostile_message_is_refused(repository, message):
    send = f"os.write(plugin.launch_request.emitter.fd, {(message + chr(10)).encode()!r})"
    repository.job(f"from harness.measure import plugin; {send}; time.sleep(5)")
    outcome = run(repository)
    assert {status for status, _ in statuses(outcome).values()} == {"invalid"}
    assert all(r.reason.startswith("bad_message") for r in outcome.records)


def test_processes_of_a_run_are_gone_when_it_ends(repository):
    repository.job("pass")
    run(repository)
    running = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == os.getpid()]
    assert [p for p in running if b"harness.measure.server" in _command(p)] == []


def _parent(process):
    try:
        return int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def _command(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_text_that_no_file_can_hold_costs_its_own_cell(repository):
    repository.job("if subject.case.N == 8: raise ValueError(chr(0xdcff))")
    assert statuses(run(repository)) == {
        ("double", "N=8"): ("crash", r"ValueError: \udcff (jobs/correctness.py:14)"),
        ("double", "N=9"): ("ok", None),
    }


@pytest.mark.parametrize(
    "reading",
    ["Reading('rel_l2_error', 10**400)", "Reading('rel_l2_error', 0.0, columns={'grid': 5})", "Reading('no_such_metric', 0.0)"],
    ids=["a huge value", "a column of another type", "an unknown metric"],
)
def test_a_reading_that_cannot_be_stored_costs_its_own_cell(repository, reading):
    repository.job(f"if subject.case.N == 8: record([{reading}])")
    found = statuses(run(repository))
    assert found["double", "N=8"][0] == "invalid"
    assert found["double", "N=9"] == ("ok", None)


def test_a_lost_fork_server_is_replaced_and_the_cell_in_hand_is_blamed(repository):
    repository.job("if subject.case.N == 8: os.kill(os.getppid(), signal.SIGKILL); time.sleep(5)")
    assert statuses(run(repository)) == {("double", "N=8"): ("crash", "its fork server ended"), ("double", "N=9"): ("ok", None)}


def test_a_cell_that_ends_after_its_fork_server_did_is_not_believed_and_the_next_is_run_again(repository):
    later = "__import__('threading').Timer(2.0, os.kill, (os.getppid(), signal.SIGKILL)).start()"
    repository.job(f"{later} if subject.case.N == 8 else time.sleep(4)")
    found = statuses(run(repository))
    assert found["double", "N=8"] == ("invalid", "worker_lost: the fork server ended in this cell or right after it")
    assert found["double", "N=9"] == ("ok", None)


PUTS_OFF = """
    from harness.measure.plugin import SESSION
    with open({note!r}, "a") as log: log.write(f"{{subject.case.N}} ")
    def rest():
        with open({note!r}, "a") as log: log.write(f"rest of {{subject.case.N}} ")
        {then}
        return [Reading("rel_l2_error", 0.25)]
    request.config.stash[SESSION].timer.put_off[subject.cell] = rest
    {after}
    return
"""


class TestWhatACellPutsOff:
    """A launch that takes the main figures of its cells first."""

    @pytest.fixture
    def put_off(self, repository, tmp_path):
        """Runs both cells: what became of them, and what was done, in order.

        Args of it:
            after: what a cell does once it has put the rest off; `then`: what the rest does.
            teardown: what the test's end does.
        """

        def run_both(after="pass", then="pass", teardown="pass", deadline=60.0):
            repository.job(PUTS_OFF.strip().format(note=str(tmp_path / "note"), after=after, then=then), deadline)
            text = (repository.root / "jobs/correctness.py").read_text()
            ends = f"@__import__('pytest').fixture\ndef ends(subject):\n    yield\n    {teardown}\n\n\ndef test_probe"
            text = text.replace("def test_probe", ends).replace("(subject, record)", "(subject, record, request, ends)")
            repository.write("jobs/correctness.py", text)
            outcome = run(repository)
            return statuses(outcome), (tmp_path / "note").read_text().strip()

        return run_both

    def test_is_measured_when_all_cells_have_had_their_turn(self, put_off):
        found, note = put_off()
        assert found == {("double", "N=8"): ("ok", None), ("double", "N=9"): ("ok", None)}
        assert note == "8 9 rest of 8 rest of 9"

    def test_and_fails_then_is_the_cells_own_failure(self, put_off):
        found, _ = put_off(then="if subject.case.N == 8: raise OSError('late')")
        assert (found["double", "N=8"][0], found["double", "N=9"]) == ("crash", ("ok", None))
        assert found["double", "N=8"][1].startswith("OSError: late")

    def test_and_ends_the_test_run_then_is_the_cells_own_failure(self, put_off):
        found, _ = put_off(then="if subject.case.N == 8: raise SystemExit(3)")
        assert (found["double", "N=8"][0], found["double", "N=9"]) == ("crash", ("ok", None))

    def test_and_kills_the_launch_then_costs_the_cell_alone(self, put_off):
        found, note = put_off(then="if subject.case.N == 8: os.kill(os.getpid(), signal.SIGSEGV)")
        assert found == {("double", "N=8"): ("crash", "killed by SIGSEGV"), ("double", "N=9"): ("ok", None)}
        assert note == "8 9 rest of 8 9 rest of 9"

    def test_is_measured_in_another_launch_where_another_cell_kills_the_first(self, put_off):
        found, _ = put_off(after="if subject.case.N == 9: os.kill(os.getpid(), signal.SIGSEGV)")
        assert found == {("double", "N=8"): ("ok", None), ("double", "N=9"): ("crash", "killed by SIGSEGV")}

    def test_is_measured_in_another_launch_where_the_cell_after_it_hangs_when_it_ends(self, put_off):
        found, _ = put_off(teardown="time.sleep(60 if subject.case.N == 9 else 0)", deadline=5.0)
        assert found == {("double", "N=8"): ("ok", None), ("double", "N=9"): ("timeout", "no end within 5 s")}

    def test_is_measured_in_another_launch_where_the_cell_after_it_ends_the_process(self, put_off):
        found, _ = put_off(teardown="subject.case.N == 9 and os._exit(3)")
        assert (found["double", "N=8"], found["double", "N=9"][0]) == (("ok", None), "crash")
        assert found["double", "N=9"][1].startswith("exit status 3")

    def test_is_not_believed_where_its_cell_has_killed_the_fork_server(self, put_off):
        later = "__import__('threading').Timer(2.0, os.kill, (os.getppid(), signal.SIGKILL)).start()"
        found, _ = put_off(after=f"{later} if subject.case.N == 8 else time.sleep(4)")
        assert found["double", "N=8"] == ("invalid", "worker_lost: the fork server ended in this cell or right after it")
        assert found["double", "N=9"] == ("ok", None)


LEAVES_A_DAEMON = """
    note = "{folder}/%d" % subject.case.N
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open(note + ".new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(note + ".new", note)
            time.sleep(60)
        os._exit(0)
    while not os.path.exists(note):
        time.sleep(0.01)
"""


def test_a_daemon_that_a_launch_leaves_behind_is_ended(repository, tmp_path):
    repository.job(LEAVES_A_DAEMON.strip().format(folder=tmp_path))
    assert run(repository).exit_code == 0
    assert [Path(f"/proc/{(tmp_path / n).read_text()}").exists() for n in ("8", "9")] == [False, False]


def test_code_that_rewrites_itself_is_measured_as_nothing(repository):
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", text.replace("    return x * 2\n", "    open(__file__, 'a').write('# more')\n    return x * 2\n"))
    repository.job("subject.call(subject.inputs())")
    outcome = run(repository)
    assert {status for status, _ in statuses(outcome).values()} == {"invalid"}
    assert outcome.records[0].reason.startswith("tree_changed: kernels/scale.py")
    assert outcome.exit_code == 3
