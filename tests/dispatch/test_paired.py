"""Paired runs: both arms in one run, each from its own code, judged by head's alone."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.authoring.workspace import bundled_jobs
from harness.dispatch.again import remaining
from harness.dispatch.blocks import spoils, torn, why_torn
from harness.dispatch.remainder import unfinished
from harness.plan.jobs import ABBA, Job, Turn
from harness.records import Cell, Record

CELL = Cell("scale", "double", "N=8,dtype=fp32", "h200")


def job(blocks=2):
    turns = tuple(Turn(block * 4 + i, (CELL,), arm, block) for block in range(blocks) for i, arm in enumerate(ABBA))
    return Job("j", "latency", "unit", "scale", "h200", (CELL,), turns, 60.0, 8.0)


def record(turn, lease="one", status="ok"):
    names = {"kernel": "scale", "variant": "double", "case": "N=8,dtype=fp32", "dtype": "fp32", "device": "h200", "kind": "latency"}
    value = 1.0 if status == "ok" else None
    where = {"arm": turn.arm, "block": turn.block, "position": turn.position, "lease_id": lease}
    return Record(metric="latency_us", value=value, status=status, **where, **names)


def answers(turns, **columns):
    return {("latency", CELL, turn.arm, turn.position): [record(turn, **columns)] for turn in turns}


def positions(found):
    return [position for _, _, _, position in found]


class TestATornBlock:
    def test_is_one_whose_launches_are_not_all_there(self):
        assert [4, 5] == positions(torn([job()], answers(job().turns[:6])))

    def test_is_one_over_two_leases(self):
        done = answers(job().turns[:6]) | answers(job().turns[6:], lease="two")
        assert [4, 5, 6, 7] == positions(torn([job()], done))

    def test_is_none_where_every_launch_is_there(self):
        assert [] == torn([job()], answers(job().turns))

    def test_is_none_of_a_cell_that_failed_for_what_is_known_is_kept(self):
        done = answers(job().turns[:6]) | answers(job().turns[6:7], status="crash")
        assert [] == torn([job()], done)

    def test_is_none_of_a_cell_that_base_does_not_have(self):
        alone = replace(job(), turns=tuple(t for t in job().turns if t.arm == "head"))
        assert [] == torn([alone], answers(alone.turns[:1]))

    @pytest.mark.parametrize(
        ("position", "reason", "named"),
        [
            (5, "contended: another process", True),
            (3, "contended: another process", False),
            (3, "phases: they do not add up", True),
        ],
        ids=["of this block", "of another block, that did not end the cell", "of another block, that ended the cell"],
    )
    def test_says_which_launch_did_not_end_well(self, position, reason, named):
        turn = job().turns[position]
        done = answers(job().turns[:6])
        done["latency", CELL, turn.arm, position] = [replace(record(turn, status="invalid"), reason=reason)]
        first = torn([job()], done)[0]
        assert named == (f"incomplete_block: launch {position}, of {turn.arm}, ended invalid: {reason}" == why_torn(first, done))

    def test_says_where_launches_were_not_made(self):
        done = answers(job().turns[:6])
        (first, _) = torn([job()], done)
        assert "incomplete_block: not every launch of its ABBA block was made, or not in one lease" == why_torn(first, done)


class TestWhatIsResumedOfAPair:
    """By the entries of a journal: the launches that are made."""

    def left(self, *changed):
        """Of a cell whose launches are all good, but for what is given of some positions; and the cells that are measured again."""
        whole = job()
        found, again = remaining([whole], [[replace(record(turn), **dict(changed).get(turn.position, {}))] for turn in whole.turns])
        return [turn.position for one in unfinished([whole], found.done) for turn in one.turns], list(again)

    def test_is_nothing_where_all_is_good(self):
        assert ([], []) == self.left()

    @pytest.mark.parametrize("arm", [0, 1], ids=["of base", "of head"])
    def test_are_all_launches_of_both_arms_where_the_machine_spoilt_one(self, arm):
        spoilt = {"status": "invalid", "reason": "contended: another process", "value": None}
        assert (list(range(8)), [("latency", CELL)]) == self.left((arm, spoilt))

    def test_is_nothing_of_a_cell_that_was_refused_for_what_it_does(self):
        whole, over = job(), {"status": "invalid", "reason": "over_peak: too fast", "value": None}
        made = [turn for turn in whole.turns if turn.arm == "base" or turn.position == 1]  # head's others were not made
        found, again = remaining([whole], [[replace(record(turn), **over if turn.position == 1 else {})] for turn in made])
        assert ([], {}) == (list(unfinished([whole], found.done)), again)

    def test_is_the_torn_block_of_one_that_was_stopped(self):
        whole = job()
        found, again = remaining([whole], [[record(turn)] for turn in whole.turns[:6]])
        assert ([4, 5, 6, 7], {}) == ([turn.position for one in unfinished([whole], found.done) for turn in one.turns], again)


@pytest.mark.parametrize(
    ("status", "reason", "ends"),
    [
        ("ok", None, False),
        ("wrong", "not_close", True),
        ("invalid", "phases: they do not add up", True),
        ("skipped", "memory", True),
        ("invalid", "contended: a canary moved", False),
        ("invalid", "throttled: hw_slowdown", False),
        ("invalid", "host_clock: the host's says 90 us", False),
        ("invalid", "contention of another kind", True),
    ],
)
def test_a_cell_is_left_out_of_later_launches_unless_the_machine_may_be_to_blame(status, reason, ends):
    assert ends == spoils([replace(record(job().turns[0], status=status), reason=reason)])


@pytest.fixture
def changed(repository):
    """main, and a branch `pr` whose kernel answers otherwise."""
    text = (repository.root / "kernels/scale.py").read_text()

    def change(old, new):
        main = repository.git("rev-parse", "main")
        repository.git("checkout", "-q", "-b", "pr")
        repository.write("kernels/scale.py", text.replace(old, new))
        return main, repository.commit("change")

    return change


def submit(harness, *options):
    """Proves pr and its base right in the interpreter."""
    return harness("submit", "--ref", "pr", "--against", "main", "--kind", "correctness", "--device", "cpu", *options)


def stored(repository):
    """run.json and the records of the one run."""
    from harness.store.runs import RunStore

    run, records = RunStore(repository.root / ".harness/runs").read(json.loads(_last(repository))["run_id"])
    return SimpleNamespace(run=run, records=records)


def _last(repository):
    return sorted((repository.root / ".harness/runs").iterdir())[-1].joinpath("run.json").read_text()


@pytest.mark.slow
class TestARunAgainstItsBase:
    def test_measures_each_arm_from_its_own_code_and_gives_a_diff_its_base(self, repository, harness, changed):
        main, head = changed("return x * 2", "return x * 2.0")
        assert submit(harness).code == 0
        found = stored(repository)
        assert {("base", main), ("head", head)} == {(r.arm, r.commit) for r in found.records}
        assert found.run["against"]["commit"] == main
        assert len({r.lease_id for r in found.records}) == 1
        answer = harness("diff", "main..pr", "--no-compile", "--format", "json")
        assert (0, {"UNCHANGED": 4}) == (answer.code, {k: n for k, n in json.loads(answer.out)["counts"].items() if n})
        assert harness("submit", "--resume", "last").code == 0

    def test_is_judged_by_head_alone(self, repository, harness, changed):
        changed("return x * 2", "return x * 3")
        answer = submit(harness, "--format", "json")
        assert (1, {"ok": 2, "wrong": 2}) == (answer.code, json.loads(answer.out)["cells"]["by_status"])
        diff = json.loads(harness("diff", "main..pr", "--no-compile", "--format", "json").out)
        assert {("scale/double", "BROKEN"), ("scale/twice", "UNCHANGED")} == {
            (f["cell"].rpartition("/")[0], f["verdict"]) for f in diff["findings"]
        }

    def test_that_a_broken_base_has_is_not_heads_fault(self, repository, harness, changed):
        repository.write("kernels/scale.py", (repository.root / "kernels/scale.py").read_text().replace("return x + x", "return x"))
        repository.commit("broken")
        changed("return x * 2", "return x * 2.0")  # from the text before: mends `twice`
        assert submit(harness).code == 0
        counts = json.loads(harness("diff", "main..pr", "--no-compile", "--format", "json").out)["counts"]
        assert (2, 2) == (counts["IMPROVED"], counts["UNCHANGED"])

    def test_under_job_files_of_its_own_says_nothing_of_its_base_to_other_code(self, repository, harness):
        text = (repository.root / "kernels/scale.py").read_text()
        job = (bundled_jobs() / "correctness.py").read_text()
        repository.write("jobs/matrix.toml", '[[all.cells]]\nkind = "correctness"\ndevices = ["cpu"]\n')
        repository.write("jobs/conftest.py", (bundled_jobs() / "conftest.py").read_text())
        repository.write("jobs/correctness.py", job)
        repository.commit("job files")
        assert harness("submit", "--ref", "main").code == 0
        repository.git("checkout", "-q", "-b", "strict")
        repository.write("jobs/correctness.py", job.replace("    record(readings)\n", "    assert False\n"))
        repository.commit("nothing is right")
        assert harness("submit", "--ref", "strict", "--against", "main").code == 1
        repository.git("checkout", "-q", "-b", "pr", "main")
        repository.write("kernels/scale.py", text.replace("return x * 2", "return x * 2.0"))
        repository.commit("change")
        assert harness("submit", "--ref", "pr").code == 0
        counts = json.loads(harness("diff", "main..pr", "--no-compile", "--format", "json").out)["counts"]
        assert {"UNCHANGED": 4} == {verdict: n for verdict, n in counts.items() if n}

    def test_against_a_ref_that_is_not_there_says_so(self, repository, harness):
        answer = harness("submit", "--against", "nowhere")
        assert (2, True) == (answer.code, "ref 'nowhere'" in answer.err)
