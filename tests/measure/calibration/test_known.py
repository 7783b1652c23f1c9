"""Known costs on a scripted device: they are read back, and a clock or a timer that lies is told."""

from __future__ import annotations

import pytest
from known_device import FakeKnown, known_session

from harness.measure.calibration import known
from harness.measure.calibration.known import find_resolution_ns, fit_line, interval, known_copies, known_slowdowns, known_spins


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(known, "CLOCK_S", 0.02)
    monkeypatch.setattr(known, "BLOCKS", 3)


def computing(**script):
    return known_session(**{"replay_computes": lambda replays: True, "mark_us": 0.01, **script})


def values(readings):
    return {r.metric: r.value for r in readings}


def spins(session, **kernels):
    return values(known_spins(session, FakeKnown(session.device, **kernels)))


def test_spins_are_read_as_their_length_and_a_launch():
    found = spins(computing(launch_us=0.8, graph_gap_us=0.0))
    assert found["spin_true_us@50000"] == pytest.approx(50.0)
    assert found["spin_us@50000"] == pytest.approx(50.8, rel=0.002)
    assert found["spin_slope_percent"] == pytest.approx(0.0, abs=0.05)
    assert found["spin_offset_us"] == pytest.approx(0.8, abs=0.1)
    assert found["timer_tick_ns"] == 32.0


def test_a_device_whose_spins_last_longer_than_its_timer_says_is_told_by_the_slope():
    assert spins(computing(graph_gap_us=0.0), factor=1.02)["spin_slope_percent"] == pytest.approx(2.0, abs=0.1)


def test_a_timer_with_counts_of_another_length():
    found = spins(computing(), ns_per_count=10.0, step=1)
    assert found["timer_tick_ns"] == 10.0
    assert found["spin_true_us@2000"] == pytest.approx(2.0)


def test_a_clock_that_runs_fast_is_told_by_the_hosts():
    session = computing()
    good = spins(session)["clock_ratio"]
    session.device.script.clock_divisor = 1 / 1.01
    assert good == pytest.approx(1.0, abs=0.001)
    assert spins(session)["clock_ratio"] == pytest.approx(1.01, abs=0.002)


def slowdowns(session, **kernels):
    return values(known_slowdowns(session, FakeKnown(session.device, **kernels)))


def test_injected_slow_downs_are_read_back_as_parts_of_the_whole_call():
    found = slowdowns(computing(launch_us=5.0, jitter=0.001))
    for percent in known.SLOWDOWNS_PERCENT:
        assert found[f"slowdown_true_percent@{percent:g}"] == pytest.approx(percent, rel=0.01)
        half = found[f"slowdown_half_width_percent@{percent:g}"]
        assert 0 < half < 0.2
        assert found[f"slowdown_percent@{percent:g}"] == pytest.approx(percent, abs=2 * half)


def test_a_slow_down_that_is_not_there_is_not_read():
    found = slowdowns(computing(), factor=0.0)
    assert found["slowdown_percent@5"] == pytest.approx(0.0, abs=0.05)


def test_a_coarse_timer_gets_a_spin_so_long_that_the_smallest_slow_down_is_several_ticks(monkeypatch):
    session, lengths = computing(), []
    kernels = FakeKnown(session.device, step=1024)
    spin = kernels.spin
    monkeypatch.setattr(kernels, "spin", lambda counts, passed: lengths.append(counts) or spin(counts, passed))
    found = values(known_slowdowns(session, kernels))
    assert min(lengths) == pytest.approx(8 * 1024 / 0.005)
    assert found["slowdown_true_percent@0.5"] == pytest.approx(0.5, rel=0.01)


def test_the_resolution_is_the_smallest_step_in_ns():
    session = computing()
    assert find_resolution_ns(session, FakeKnown(session.device, ns_per_count=10.0, step=3)) == 30.0


def test_copies_cost_the_memorys_bandwidth_and_lie_on_a_line(monkeypatch):
    monkeypatch.setattr(known, "COPY_CACHES", (1, 2, 4))
    found = values(known_copies(known_session(launch_us=3.0)))
    assert len([m for m in found if m.startswith("copy_us@")]) == 3
    assert found["copy_marginal_gbps"] == pytest.approx(100.0, rel=0.01)
    assert found["copy_off_percent"] < 0.2


def test_copies_that_do_not_fit_are_left_out(monkeypatch):
    monkeypatch.setattr(known, "COPY_CACHES", (1, 2, 4))
    found = values(known_copies(known_session(memory_bytes=66 << 20)))
    assert len([m for m in found if m.startswith("copy_us@")]) == 2
    assert "copy_marginal_gbps" not in found


def test_a_line_is_fitted_and_its_worst_point_is_known():
    exact = fit_line([1, 2, 4], [3.0, 5.0, 9.0])
    assert (exact.slope, exact.offset, exact.off) == (pytest.approx(2.0), pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))
    assert fit_line([1, 2, 4], [3.0, 5.5, 9.0]).off > 0.02
    with pytest.raises(ValueError, match="two different x"):
        fit_line([2, 2], [1.0, 1.0])


def test_an_interval_is_students():
    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, half) == (pytest.approx(2.0), pytest.approx(4.302653 / 3**0.5, rel=1e-5))
