"""A budget of time: how it is written, what comes first, what may still start, what is probably left out."""

import json
import time
from dataclasses import replace

import pytest

from harness.errors import HarnessError
from harness.plan.affected import Change
from harness.plan.budget import Allowance, Tier, duration_text, forecast, longest_job, parse_duration, tiers
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo
from harness.plan.jobs import ABBA, Job, Turn, make_jobs, narrowed
from harness.records import Cell, Expected

CASES = [CaseInfo("N=1,dtype=fp32", ["headline"]), CaseInfo("N=2,dtype=fp32", [])]
KINDS = [("correctness", "unit", 5.0), ("drift", "unit", 30.0), ("latency", "unit", 4.0), ("static", "host", 1.0), ("zest", "unit", 1.0)]


def description():
    kernels = [KernelInfo(n, f"kernels/{n}.py", "", ["fast"], "fast", "fast", CASES, [], False, False) for n in ("add", "mul")]
    cells = [KindCell(k.name, "fast", c.case, None) for k in kernels for c in CASES]
    return Description(kernels, [KindInfo(name, f"{name}.py", on, s, 60.0, name == "latency", cells) for name, on, s in KINDS])


def expected(device="h200"):
    what = description()
    return [Expected(Cell(c.kernel, "fast", c.case, device), k.name) for k in what.kinds for c in k.cells]


def job(seconds, device="h200", *, on="unit", tier=0, name="j"):
    cells = (Cell("add", "fast", CASES[0].case, device),)
    return Job(name, "latency", on, "add", device, cells, (Turn(0, cells),), 60.0, seconds, tier)


class TestADuration:
    @pytest.mark.parametrize(
        ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2h", 7200), ("1h0m5s", 3605), ("0.5m", 30), ("1.5s", 1.5)]
    )
    def test_is_hours_minutes_and_seconds(self, text, seconds):
        assert seconds == parse_duration(text)

    @pytest.mark.parametrize("text", ["", "10", "m", "10x", "-5m", "10m ", "1m1h", "nan", "1e3s", "ten minutes"])
    def test_of_another_form_is_refused(self, text):
        with pytest.raises(HarnessError) as error:
            parse_duration(text)
        assert (f"--budget {text}", f"{text!r} is no duration") == (error.value.asked, error.value.found)
        assert "10m" in error.value.do

    @pytest.mark.parametrize("text", ["0s", "0m", "0h0m0s"])
    def test_of_nothing_is_refused(self, text):
        with pytest.raises(HarnessError, match="no time at all"):
            parse_duration(text)

    @pytest.mark.parametrize("text", ["90s", "10m", "1h30m", "1h5s", "1.5s"])
    def test_is_shown_as_it_is_read(self, text):
        assert parse_duration(text) == parse_duration(duration_text(parse_duration(text)))

    def test_is_shown_in_the_largest_units(self):
        assert ["1m30s", "10m", "1h30m"] == [duration_text(seconds) for seconds in (90, 600, 5400)]


class TestTheOrder:
    def ordered(self, change):
        jobs = make_jobs(expected(), description().kinds, "digest", tier=tiers(description(), change))
        return [(j.tier, j.kind, j.kernel, [c.case[2] for c in j.cells]) for j in jobs]

    def test_is_affected_cells_then_headline_ones_then_kinds(self):
        found = self.ordered(Change(frozenset({"mul"}), frozenset()))
        kinds = ["static", "correctness", "latency", "drift", "zest"]
        assert [(tier, kind, kernel, [n]) for tier, kernel, n in [(0, "mul", "1"), (1, "mul", "2"), (2, "add", "1"), (3, "add", "2")]
                for kind in kinds] == found  # fmt: skip

    def test_without_a_change_is_headline_cells_first_in_the_order_of_the_matrix(self):
        found = self.ordered(None)
        assert {Tier.AFFECTED_HEADLINE, Tier.AFFECTED} == {tier for tier, *_ in found}
        assert ["add", "mul"] == [kernel for tier, kind, kernel, _ in found if (tier, kind) == (0, "latency")]

    def test_a_changed_job_file_affects_its_kind_alone(self):
        found = self.ordered(Change(frozenset(), frozenset({"latency"})))
        assert {"latency"} == {kind for tier, kind, *_ in found if Tier(tier).affected}

    def test_without_tiers_is_the_longest_job_first(self):
        jobs = make_jobs(expected(), description().kinds, "digest")
        assert ("drift", [0]) == (jobs[0].kind, sorted({j.tier for j in jobs}))


class TestJobsUnderABudget:
    def test_are_split_by_cell_and_keep_their_blocks_whole(self):
        base = {(e.kind, e.cell) for e in expected()}
        jobs = make_jobs(expected(), description().kinds, "digest", 6, base, longest_s=50.0)
        latency = [j for j in jobs if j.kind == "latency"]
        assert [1, 1, 1, 1] == [len(j.cells) for j in latency]
        assert [list(ABBA * 3)] * 4 == [[t.arm for t in j.turns] for j in latency]

    @pytest.mark.parametrize(("budget", "longest"), [(3600, 300), (1800, 180), (600, 60), (120, 30), (40, 20)])
    def test_are_short_beside_it(self, budget, longest):
        assert longest == longest_job(budget)

    def test_expect_less_when_part_of_them_is_done(self):
        cells = expected()[0].cell, expected()[1].cell
        whole = Job("j", "latency", "unit", "add", "h200", cells, (Turn(0, cells), Turn(1, cells)), 60.0, 16.0)
        part = narrowed(whole, [Turn(0, ()), replace(whole.turns[1], cells=cells[:1])])
        assert (4.0, [1]) == (part.expected_s, [t.position for t in part.turns])


class TestAnAllowance:
    def test_lets_a_job_start_while_there_is_time_for_it(self):
        allowance = Allowance(100.0, time.monotonic() - 30.5)
        assert allowance.refusal(job(60.0)) is None
        assert "budget: about 80 s by the plan, 69 s of 1m40s left" == allowance.refusal(job(80.0))

    def test_lets_nothing_start_when_it_is_over(self):
        over = Allowance(100.0, time.monotonic() - 101.0)
        assert (0.0, "budget: about 0 s by the plan, 0 s of 1m40s left") == (over.left_s, over.refusal(job(0.0)))

    def test_goes_on_in_another_process(self):
        sent = json.loads(json.dumps(Allowance(100.0, time.monotonic() - 40.0).to_json()))
        assert 60.0 == pytest.approx(Allowance.from_json(sent).left_s, abs=1.0)


class TestAForecast:
    def starts(self, jobs, units, slots=1, budget=100.0, *, at_once=False):
        return [(one.job.job_id, one.start_s) for one in forecast(jobs, units, slots, budget, at_once=at_once)]

    def test_shares_a_devices_jobs_among_its_units(self):
        jobs = [job(40.0, name=n) for n in "abc"]
        assert [("a", 0), ("b", 0), ("c", 40)] == self.starts(jobs, {"h200": 2})
        assert [("a", 0), ("b", 40), ("c", None)] == self.starts(jobs, {"h200": 1})

    def test_compiles_before_it_measures_tier_by_tier(self):
        jobs = [job(10.0, name="gpu"), job(5.0, on="host", name="host"), job(1.0, on="host", tier=2, name="later")]
        assert [("host", 0), ("gpu", 5), ("later", 15)] == self.starts(jobs, {"h200": 1})

    def test_of_a_fleet_lets_devices_work_at_once(self):
        jobs = [job(60.0, "a10g", name="a"), job(60.0, name="h")]
        assert [("a", 0), ("h", None)] == self.starts(jobs, {"a10g": 1, "h200": 1})
        assert [("a", 0), ("h", 0)] == self.starts(jobs, {"a10g": 1, "h200": 1}, at_once=True)

    def test_says_nothing_of_a_device_that_is_not_here(self):
        assert [] == self.starts([job(1.0)], {"h200": 0})

    def test_fills_what_a_long_job_leaves_with_a_short_one(self):
        assert [("long", None), ("short", 0)] == self.starts([job(101.0, name="long"), job(5.0, name="short")], {"h200": 1})
