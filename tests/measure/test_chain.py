"""A chain of dependent calls, on a device whose work is done when it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness import Case, Cycle, Drift, Kernel, Tolerance, Traffic, Variant
from harness.devices.table import load_devices
from harness.measure.chain import CALLS, carried_by, check_chain
from harness.measure.checks import Defect, Finding
from harness.measure.correctness import check_correctness
from harness.measure.subject import Subject
from harness.records import Status

NEAR = {"fp32": Tolerance(1e-5, "a test")}


class Queue:
    """Work that the device does later."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []

    def add(self, work: Callable[[], Any]) -> None:
        self.work.append(work)

    def wait(self) -> None:
        while self.work:
            self.work.pop(0)()


def declare(call: Callable[..., Any], **fields: Any) -> Subject:
    """A cell: `state` becomes state/2 + x, which is returned."""

    def make_inputs(case: Case, generator: Any) -> dict[str, Any]:
        return {"x": generator.uniform((case.N,)), "state": generator.uniform((2, case.N))[:1], "bias": None}

    def reference(x: torch.Tensor, state: torch.Tensor, bias: None) -> dict[str, Any]:
        new = state.double() / 2 + x
        return {"y": new, "state": new}

    variant = fields.pop("variant", {})
    declared: dict[str, Any] = {"outputs": ("y",), "mutates": ("state",), "tolerance": NEAR, "name": "toy", **fields}
    kernel = Kernel(
        variants={"only": Variant(call, triton=False, **variant)},
        default="only",
        baseline="only",
        axes=("N",),
        cases=[Case(N=8, dtype="fp32", tags="smoke")],
        make_inputs=make_inputs,
        reference=reference,
        traffic=lambda case: Traffic(2 * 4 * case.N, 2 * 4 * case.N),
        flops=lambda case: 1,
        **declared,
    )
    return Subject(kernel, "only", kernel.cases[0], load_devices()["cpu"], "cpu")


def step(x: torch.Tensor, state: torch.Tensor, bias: None) -> torch.Tensor:
    return state.mul_(0.5).add_(x).clone()


def chained(subject: Subject, queue: Queue | None = None) -> Finding | None:
    device = queue or Queue()
    return check_chain(subject, subject.inputs(), queue=lambda: None, wait=device.wait)


def test_calls_that_wait_for_each_other_give_the_same_twice() -> None:
    assert chained(declare(step)) is None


def test_a_call_that_reads_before_the_one_ahead_has_written_is_found() -> None:
    queue = Queue()

    def early(x: torch.Tensor, state: torch.Tensor, bias: None) -> torch.Tensor:
        new = state * 0.5 + x
        queue.add(lambda: state.copy_(new))
        return new

    subject = declare(early)
    finding = chained(subject, queue)
    assert finding is not None
    assert (Defect.CHAIN_DIFFERS, Status.WRONG) == (finding.defect, finding.defect.status)
    assert finding.detail.startswith(f"state after {CALLS} calls back to back is not what it is with a wait after each, worst at [")


def test_calls_are_queued_at_once_behind_a_busy_device_the_second_time() -> None:
    seen: list[str] = []
    subject = declare(lambda x, state, bias: (seen.append("call"), step(x, state, bias))[1])
    check_chain(subject, subject.inputs(), queue=lambda: seen.append("queue"), wait=lambda: seen.append("wait"))
    assert [*["call", "wait"] * CALLS, "wait", "queue", *["call"] * CALLS, "wait"] == seen


def functional(x: torch.Tensor, state: torch.Tensor, bias: None) -> tuple[torch.Tensor, torch.Tensor]:
    new = state * 0.5 + x
    return new, new.clone()


CARRY = Drift(step_inputs=lambda case, generator: {}, carry={"state": "state"}, tolerance=NEAR)
FUNCTIONAL: dict[str, Any] = {"variant": {"outputs": ("y", "state"), "mutates": ()}, "drift": CARRY}


def test_a_functional_variant_is_given_the_state_it_returned() -> None:
    given: list[torch.Tensor] = []
    subject = declare(lambda x, state, bias: (given.append(state), functional(x, state, bias))[1], **FUNCTIONAL)
    assert chained(subject) is None
    expected = given[0]
    for state in given[1:CALLS]:
        expected = expected * 0.5 + subject.inputs()["x"]
        assert torch.equal(expected, state)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"state": "state"}),
        (FUNCTIONAL, {"state": "state"}),
        ({"mutates": ()}, {}),
        ({"mutates": ("bias",)}, {}),
        ({"mutates": (), "drift": Drift(lambda case, generator: {}, {"state": "cache"}, NEAR)}, {}),
    ],
    ids=["mutates", "returns its state", "no state", "an absent option", "carries what this variant does not give"],
)
def test_a_chain_carries_what_is_declared(fields: dict[str, Any], expected: dict[str, str]) -> None:
    subject = declare(step, **fields)
    assert expected == carried_by(subject, subject.inputs())


def test_a_kernel_without_state_is_not_called() -> None:
    assert chained(declare(lambda **inputs: pytest.fail("it was called"), mutates=())) is None


def test_a_cycle_is_advanced_after_each_call() -> None:
    moves: list[int] = []
    subject = declare(step, cycle=Cycle(lambda case: 2, "cursor", lambda inputs: moves.append(1)))
    chained(subject)
    assert 2 * CALLS == len(moves)


@pytest.mark.parametrize(("noise", "expected"), [(1e-6, None), (1e-2, Defect.CHAIN_DIFFERS)], ids=["within it", "beyond it"])
def test_a_kernel_that_is_not_deterministic_is_given_its_tolerance(noise: float, expected: Defect | None) -> None:
    draw = torch.Generator().manual_seed(1)

    def noisy(x: torch.Tensor, state: torch.Tensor, bias: None) -> torch.Tensor:
        return state.mul_(0.5).add_(x).mul_(1 + noise * torch.rand(1, generator=draw)).clone()

    finding = chained(declare(noisy, deterministic=False))
    assert expected == (finding and finding.defect)
    assert Defect.CHAIN_DIFFERS == getattr(chained(declare(noisy)), "defect", None)


def test_the_inputs_stay_as_they_were() -> None:
    subject = declare(step)
    before = subject.inputs()
    check_chain(subject, before, queue=lambda: None, wait=lambda: None)
    assert all(torch.equal(value, before[name]) for name, value in subject.inputs().items() if isinstance(value, torch.Tensor))


def test_the_correctness_check_makes_no_chain_where_nothing_runs_at_once() -> None:
    calls: list[int] = []
    readings = check_correctness(declare(lambda x, state, bias: (calls.append(1), step(x, state, bias))[1]))
    assert ({Status.OK}, 3) == ({r.status for r in readings}, len(calls))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_right_kernel_passes_its_chain_on_a_gpu() -> None:
    subject = declare(step)
    on_gpu = Subject(subject.kernel, "only", subject.case, subject.device, "cuda")
    assert {(Status.OK, None)} == {(r.status, r.reason) for r in check_correctness(on_gpu)}
