from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kernel_testing import GPUS, clone, drift_of, rel_l2, same_bits

from harness import Case, Cycle, DeviceProperties, Kernel
from harness.devices.properties import pretend
from harness.measure.data import Generator, torch_dtype

ROOT = Path(__file__).parents[2]
KERNEL_NAME = "gdn_replayssm_decode"
VARIANTS = ("fused", "torch")
MUTATED = ("state", "ring_d", "ring_k", "ring_g")

Call = Callable[..., torch.Tensor]


@pytest.fixture
def unbuffered(load_kernel: Callable[[str], Kernel]) -> Kernel:
    """The step that writes its state every time: what this one must equal."""
    return load_kernel("gdn_decode")


@pytest.fixture(params=VARIANTS)
def call(kernel: Kernel, request: pytest.FixtureRequest) -> Call:
    """A variant's launcher: what holds for one holds for the other."""
    return kernel.variant(request.param).call


def case(dtype: str = "fp32", **axes: Any) -> Case:
    full = {"B": 2, "H": 1, "HV": 1, "K": 16, "V": 8, "L": 4, "nk": 1, "ring": "io", "pad": 0, "phase": "mixed", "strided": 0, **axes}
    return Case(dtype=dtype, **full)


def cycle_of(kernel: Kernel) -> Cycle:
    assert kernel.cycle is not None
    return kernel.cycle


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(same_bits(one[name], other[name]) for name in MUTATED)


def live_rows(inputs: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Row, slot and position of each live row."""
    rows = zip(inputs["state_indices"].tolist(), inputs["write_pos"].tolist(), strict=True)
    return [(row, slot, position) for row, (slot, position) in enumerate(rows) if slot >= 0]


def spoil_void_records(inputs: dict[str, Any]) -> None:
    """Put NaN into every record that no live row has in use."""
    used = torch.zeros(inputs["ring_g"].shape[0], inputs["ring_g"].shape[2], dtype=torch.bool)
    for _, slot, position in live_rows(inputs):
        used[slot, :position] = True
    for name, axes in (("ring_d", 1), ("ring_k", 1), ("ring_g", 0)):
        shape = (used.shape[0], 1, used.shape[1], *[1] * axes)
        inputs[name].masked_fill_(~used.view(shape).expand_as(inputs[name]), float("nan"))


# Right on every case


def expected_changes(inputs: dict[str, Any], length: int) -> set[tuple[int, str, int]]:
    """Slot, tensor and record of all that a step may write; of the checkpoint, which has no records, every number."""
    changes = set()
    for _, slot, position in live_rows(inputs):
        if position == length - 1:
            changes |= {(slot, "state", record) for record in range(length)}
        else:
            changes |= {(slot, name, position) for name in ("ring_d", "ring_k", "ring_g")}
    return changes


def found_changes(before: dict[str, Any], after: dict[str, Any], length: int) -> set[tuple[int, str, int]]:
    def part(tensor: torch.Tensor, slot: int, record: int) -> torch.Tensor:
        return tensor[slot] if tensor is before["state"] or tensor is after["state"] else tensor[slot, :, record]

    places = ((slot, name, record) for slot in range(len(before["state"])) for name in MUTATED for record in range(length))
    return {(s, name, r) for s, name, r in places if not same_bits(part(before[name], s, r), part(after[name], s, r))}


def test_step_is_right_and_writes_one_record_or_the_checkpoint_of_live_rows_alone(kernel: Kernel, cpu_cell: tuple[str, Case]) -> None:
    variant_name, case = cpu_cell
    inputs = kernel.make_inputs(case, Generator(2))
    before = clone(inputs)
    expected = kernel.reference(**inputs)
    assert all(same_bits(before[name], value) for name, value in inputs.items() if isinstance(value, torch.Tensor))

    out = kernel.variant(variant_name).call(**inputs)
    assert all(same_bits(before[name], inputs[name]) for name in ("mixed_qkv", "a", "b", "A_log", "dt_bias", "write_pos", "state_indices"))
    assert expected_changes(inputs, case.L) == found_changes(before, inputs, case.L)
    assert same_bits(torch.zeros_like(out)[inputs["state_indices"] < 0], out[inputs["state_indices"] < 0])

    tolerance = kernel.tolerance_of(case)
    assert expected["out"].shape == out.shape == (case.B, 1, case.HV, case.V)
    assert torch_dtype(case.dtype) == out.dtype
    live = [slot for _, slot, _ in live_rows(inputs)]
    errors = {name: rel_l2(inputs[name][live], expected[name][live]) for name in MUTATED if live}
    errors |= {"out": rel_l2(out, expected["out"])} if live else {}
    assert {} == {name: error for name, error in errors.items() if not error <= tolerance.limit(name)}


# Equal to the unbuffered step

STEPS = 64
RINGS = {"fp32": (1e-6, 1e-6), "fp16": (4.5e-4, 6e-4), "bf16": (3e-3, 5e-3)}
"""By dtype: limits of a checkpoint, to which the rounding of records comes, and of an output, to which its own comes too."""


@pytest.mark.parametrize("dtype", RINGS)
def test_64_steps_equal_the_unbuffered_step_for_rows_in_different_phases(
    kernel: Kernel, unbuffered: Kernel, call: Call, dtype: str
) -> None:
    one = case(dtype, L=8)
    generator = Generator(4)
    inputs = kernel.make_inputs(one, generator)
    inputs["write_pos"].copy_(torch.tensor([0, 0]))
    packed = {name: inputs[name] for name in ("A_log", "dt_bias", "state_indices")} | {"state": inputs["state"].double(), "l2norm": True}
    folds, errors, states = 0, [], []
    for step in range(STEPS):
        inputs.update(drift_of(kernel).step_inputs(one, generator))
        if step == 3:  # from here on the second row is three steps ahead: it starts anew, as a new sequence does
            slot = int(inputs["state_indices"][1])
            inputs["write_pos"][1] = 0
            packed["state"][slot] = inputs["state"][slot]
        exact = unbuffered.reference(**packed, **{name: inputs[name] for name in ("mixed_qkv", "a", "b")})
        packed["state"] = exact["state"]
        errors.append(rel_l2(call(**inputs), exact["out"]))
        for _, slot, position in live_rows(inputs):
            if position == one.L - 1:
                folds += 1
                states.append(rel_l2(inputs["state"][slot], exact["state"][slot]))
        cycle_of(kernel).advance(inputs)
    assert (STEPS // 8) + (STEPS - 3) // 8 == folds
    assert max(states) <= RINGS[dtype][0]
    assert max(errors) <= RINGS[dtype][1]


def test_a_cycle_of_one_is_the_unbuffered_step(kernel: Kernel, unbuffered: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(L=1, HV=2), Generator(5))
    packed = {name: clone(inputs)[name] for name in ("mixed_qkv", "a", "b", "A_log", "dt_bias", "state", "state_indices")}
    rings = clone(inputs)
    expected = unbuffered.variant("torch").call(**packed)
    assert rel_l2(call(**inputs), expected) <= 1e-6
    assert rel_l2(inputs["state"], packed["state"]) <= 1e-6
    assert all(same_bits(rings[name], inputs[name]) for name in ("ring_d", "ring_k", "ring_g"))


def test_variants_agree_record_by_record(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case(B=4, H=2, HV=6, V=12, pad=1), Generator(6))
    fused, by_torch = clone(inputs), clone(inputs)
    out = kernel.variant("fused").call(**fused)
    assert rel_l2(out, kernel.variant("torch").call(**by_torch)) <= 1e-6
    assert all(rel_l2(fused[name], by_torch[name]) <= 1e-6 for name in MUTATED)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_record_is_rounded_to_nearest_once_and_the_log_gate_not_at_all(kernel: Kernel, call: Call, dtype: str) -> None:
    stored = kernel.make_inputs(case(dtype, H=2, HV=2, phase=0), Generator(7))
    exact = {**clone(stored), "ring_d": stored["ring_d"].float(), "ring_k": stored["ring_k"].float()}
    assert same_bits(call(**exact), call(**stored))
    for name in ("ring_d", "ring_k"):
        assert same_bits(exact[name].to(torch_dtype(dtype)), stored[name])
    assert same_bits(exact["ring_g"], stored["ring_g"])


def test_a_fold_takes_its_own_token_unrounded(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case("bf16", phase=3), Generator(8))
    inputs["ring_d"].zero_()
    exact = {**clone(inputs), "ring_d": inputs["ring_d"].float(), "ring_k": inputs["ring_k"].float()}
    call(**inputs)
    call(**exact)
    assert same_bits(exact["state"], inputs["state"])


@pytest.mark.parametrize("phase", [2, 3], ids=["append", "fold"])
def test_chunks_of_k_change_the_order_of_sums_alone(kernel: Kernel, call: Call, phase: int) -> None:
    inputs = kernel.make_inputs(case(K=50, V=12, phase=phase), Generator(9))
    first, *others = ({**clone(inputs), "nk": nk} for nk in (1, 2, 4))
    expected = call(**first)
    for other in others:
        assert rel_l2(call(**other), expected) <= 1e-6
        assert all(rel_l2(other[name], first[name]) <= 1e-6 for name in MUTATED)


@pytest.mark.parametrize("K", [1, 2, 5, 8, 16])
def test_short_keys_are_summed_in_one_chunk_by_default(kernel: Kernel, call: Call, K: int) -> None:
    inputs = kernel.make_inputs(case(B=4, HV=2, K=K, V=3), Generator(9))
    del inputs["nk"]
    expected = kernel.reference(**inputs, nk=1)
    assert rel_l2(call(**inputs), expected["out"]) <= 1e-6
    assert all(rel_l2(inputs[name], expected[name]) <= 1e-6 for name in MUTATED)


def test_longer_keys_are_summed_in_two_chunks_by_default(module: ModuleType) -> None:
    found = {K: module.count_chunks(None, K, BK) for K, BK in ((1, 1), (9, 16), (16, 16), (17, 32), (128, 128), (1024, 1024))}
    assert {1: 1, 9: 1, 16: 1, 17: 2, 128: 2, 1024: 2} == found


@pytest.mark.parametrize("phase", ["mixed", "cycle"])
def test_baseline_asks_the_device_for_no_value(kernel: Kernel, phase: str) -> None:
    inputs = kernel.make_inputs(case("bf16", B=4, HV=2, pad=1, phase=phase), Generator(0, "meta"))
    out = kernel.variant("torch").call(**inputs)  # whoever asked would be told that there is none
    assert ((4, 1, 2, 8), torch.bfloat16) == (out.shape, out.dtype)


def test_scale_multiplies_the_output_alone(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(), Generator(10))
    plain, doubled = clone(inputs), clone(inputs)
    assert torch.allclose(2 * call(**plain), call(**doubled, scale=2 * 16**-0.5), rtol=1e-6)
    assert same_state(plain, doubled)


# The position


def test_positions_move_on_and_around_in_place(module: ModuleType) -> None:
    write_pos = torch.arange(8, dtype=torch.int32)
    address = write_pos.data_ptr()
    module.advance_write_pos(write_pos, 8)
    assert ([1, 2, 3, 4, 5, 6, 7, 0], torch.int32, address) == (write_pos.tolist(), write_pos.dtype, write_pos.data_ptr())
    module.advance_write_pos(write_pos, 1)
    assert [0] * 8 == write_pos.tolist()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, under the interpreter, warns of what wraps around
@pytest.mark.parametrize("length", [1, 5, 8])
def test_positions_of_padded_rows_move_into_the_cycle(module: ModuleType, length: int) -> None:
    given = [-1, -2, -7, -8, -(2**31), 2**31 - 2, 2**31 - 1]
    write_pos = torch.tensor(given, dtype=torch.int32)
    module.advance_write_pos(write_pos, length)
    assert [(p + 1) % length for p in given[:-1]] == write_pos[:-1].tolist()
    assert 0 <= write_pos[-1] < length


def test_positions_of_many_rows_move_alike(module: ModuleType) -> None:
    write_pos = torch.arange(1500, dtype=torch.int32) % 5
    expected = (write_pos + 1) % 5
    module.advance_write_pos(write_pos, 5)
    assert expected.tolist() == write_pos.tolist()


def test_no_positions_are_moved_by_no_launch(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_advance", None)  # a launch would subscript it
    module.advance_write_pos(torch.zeros(0, dtype=torch.int32), 8)


@pytest.mark.parametrize(
    ("write_pos", "length", "message"),
    [
        (torch.zeros(2, dtype=torch.int64), 8, r"write_pos has .*int64.*int32"),
        (torch.zeros(4, dtype=torch.int32)[::2], 8, r"write_pos has strides \(2,\).*contiguous"),
        (torch.zeros(2, 2, dtype=torch.int32), 8, r"write_pos has shape \(2, 2\).*give \(4,\)"),
        (torch.zeros(2, dtype=torch.int32), 0, r"L=0: give the number of steps in a cycle, 1 or more"),
    ],
    ids=["dtype", "gaps", "two axes", "no steps"],
)
def test_advance_refuses(module: ModuleType, write_pos: torch.Tensor, length: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"gdn_replayssm_decode: {message}"):
        module.advance_write_pos(write_pos, length)


REPLAYED = """
import json, torch
from harness.measure.data import Generator
from kernels.gdn_replayssm_decode import KERNEL

case = KERNEL.case("B=64,H=16,HV=32,K=128,V=128,L=8,phase=mixed,dtype=bf16")
made = [KERNEL.make_inputs(case, Generator(0, "cuda")) for _ in range(3)]

def step(inputs):
    KERNEL.variant("fused").call(**inputs)
    KERNEL.cycle.advance(inputs)

warm, eager, replayed = made
step(warm)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step(replayed)
first, positions = eager["write_pos"].tolist(), []
for _ in range(19):
    step(eager)
    graph.replay()
    positions.append(replayed["write_pos"].tolist())
equal = {name: torch.equal(eager[name], replayed[name]) for name in (*KERNEL.mutates, "write_pos")}
print(json.dumps({"first": first, "positions": positions, "equal": equal}))
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_each_replay_of_a_graph_is_a_step_and_moves_the_positions_on() -> None:
    # In a process of its own: in this one Triton interprets.
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", REPLAYED], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [[(p + 1 + step) % 8 for p in found["first"]] for step in range(19)] == found["positions"]
    assert dict.fromkeys((*MUTATED, "write_pos"), True) == found["equal"]


def test_cycle_moves_the_position_alone_and_its_length_is_that_of_the_rings(kernel: Kernel) -> None:
    cycle = cycle_of(kernel)
    for one in kernel.cases:
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        assert cycle.length(one) == (1 if isinstance(one.phase, int) else inputs["ring_d"].shape[2]), one.key
    inputs = kernel.make_inputs(case(B=4, L=4), Generator(11))
    moved = clone(inputs)
    for _ in range(cycle.length(case(B=4, L=4))):
        cycle.advance(moved)
        assert [name for name in MUTATED if not same_bits(inputs[name], moved[name])] == []
        assert {0, 1, 2, 3} == set(moved["write_pos"].tolist())
    assert same_bits(inputs["write_pos"], moved["write_pos"])


PHASES = {
    "together, in the middle of a cycle": ({"B": 3, "L": 8, "phase": "cycle"}, [4, 4, 4]),
    "together, and there is but one position": ({"B": 3, "L": 1, "phase": "cycle"}, [0, 0, 0]),
    "held at one position": ({"B": 3, "L": 8, "phase": 7}, [7, 7, 7]),
    "apart, the last row at its fold": ({"B": 4, "L": 8, "phase": "mixed"}, [1, 3, 5, 7]),
    "apart, more rows than positions": ({"B": 5, "L": 3, "phase": "mixed"}, [1, 2, 0, 1, 2]),
    "a lone row at its fold": ({"B": 1, "L": 8, "phase": "mixed"}, [7]),
}


@pytest.mark.parametrize(("axes", "expected"), PHASES.values(), ids=PHASES)
def test_rows_stand(kernel: Kernel, axes: dict[str, Any], expected: list[int]) -> None:
    assert expected == kernel.make_inputs(case(**axes), Generator(0))["write_pos"].tolist()


# What reaches the result, and what does not


def test_void_records_may_hold_anything(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(B=4, H=2, HV=2), Generator(12))
    spoilt = clone(inputs)
    spoil_void_records(spoilt)
    assert any(spoilt["ring_d"][slot].isnan().any() for _, slot, _ in live_rows(inputs))
    assert same_bits(call(**inputs), call(**spoilt))
    assert same_bits(inputs["state"], spoilt["state"])
    for _, slot, position in live_rows(inputs):
        used = slice(0, min(position + 1, 3))
        assert all(same_bits(inputs[name][slot][:, used], spoilt[name][slot][:, used]) for name in ("ring_d", "ring_k", "ring_g"))


def test_padded_rows_may_hold_anything(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(B=4, pad=2), Generator(13))
    padded = inputs["state_indices"] < 0
    clean = clone(inputs)
    expected = call(**clean)
    for name in ("mixed_qkv", "a", "b"):
        inputs[name][padded] = float("nan")
    inputs["write_pos"][padded] = torch.tensor([-7, 1 << 30], dtype=torch.int32)
    assert same_bits(expected, call(**inputs))
    assert same_state(clean, inputs)


NAN = {
    "a value of a record": ("ring_d", (0, 1, 3), [(0, 3)]),
    "the checkpoint": ("state", (1, 5, 2), [(1, 5)]),
    "a key of a record, for both heads that it serves": ("ring_k", (0, 1, 2), [(0, v) for v in range(8)] + [(1, v) for v in range(8)]),
    "a gate of a record": ("ring_g", (1, 2), [(1, v) for v in range(8)]),
}


@pytest.mark.parametrize(("name", "place", "expected"), NAN.values(), ids=NAN)
def test_nan_reaches_what_depends_on(
    kernel: Kernel, call: Call, name: str, place: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    inputs = kernel.make_inputs(case(HV=2, phase=3), Generator(14))
    inputs[name][int(inputs["state_indices"][1])][place] = float("nan")
    out = call(**inputs)
    assert not out[0].isnan().any()
    assert expected == [tuple(index) for index in out[1, 0].isnan().nonzero().tolist()]


def test_nan_in_a_gate_reaches_the_output(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(HV=2), Generator(15))
    inputs["a"][1, 0] = float("nan")
    out = call(**inputs)
    assert out[1, 0, 0].isnan().all()
    assert not out[0].isnan().any()
    assert not out[1, 0, 1].isnan().any()


@pytest.mark.parametrize("phase", [2, 3], ids=["append", "fold"])
def test_a_gate_of_minus_infinity_forgets_what_came_before(kernel: Kernel, call: Call, phase: int) -> None:
    inputs = kernel.make_inputs(case(phase=phase), Generator(16))
    inputs["ring_g"][:, :, 1] = -float("inf")
    other = clone(inputs)
    other["state"].uniform_(-3, 3)
    other["ring_d"][:, :, 0].uniform_(-3, 3)
    assert same_bits(call(**inputs), call(**other))
    assert inputs["state"].isfinite().all()
    if phase == 3:
        slots = [slot for _, slot, _ in live_rows(inputs)]
        assert same_bits(inputs["state"][slots], other["state"][slots])


# Rows, slots, strides


def test_row_does_not_depend_on_the_rows_beside_it(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(B=3), Generator(17))
    together, alone = clone(inputs), clone(inputs)
    out = call(**together)
    one = {name: alone[name][1:2] for name in ("mixed_qkv", "a", "b", "write_pos", "state_indices")}
    assert rel_l2(call(**{**alone, **one}), out[1:2]) <= 1e-6
    slot = int(inputs["state_indices"][1])
    assert all(rel_l2(alone[name][slot], together[name][slot]) <= 1e-6 for name in MUTATED)


def test_strided_inputs_equal_contiguous_ones_and_the_padding_is_not_touched(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(H=2, HV=4), Generator(18))
    wide, buffers = clone(inputs), {}
    for name in ("mixed_qkv", "a", "b", *MUTATED):
        rows, values = wide[name].shape[0], wide[name][0].numel()
        buffers[name] = torch.full((rows, values + 5), float("nan")).index_copy(1, torch.arange(values), wide[name].flatten(1))
        wide[name] = buffers[name][:, :values].unflatten(1, inputs[name].shape[1:])
    assert same_bits(call(**inputs), call(**wide))
    assert same_state(inputs, wide)
    assert all(buffer[:, -5:].isnan().all() for buffer in buffers.values())


def test_slot_may_start_past_two_to_the_31_elements(kernel: Kernel) -> None:
    # The pages in between are never touched, so they take no memory. A 32-bit product of index and stride would fault.
    inputs = kernel.make_inputs(case("fp16", B=4), Generator(19))
    far, stride = clone(inputs), 2**29 + 64
    for name in ("mixed_qkv", *MUTATED):
        tensor = far[name]
        buffer = torch.empty((len(tensor) - 1) * stride + tensor[0].numel(), dtype=tensor.dtype)
        far[name] = buffer.as_strided(tensor.shape, (stride, *tensor.stride()[1:])).copy_(tensor)
    assert (len(inputs["state"]) - 1) * stride >= 2**31
    call = kernel.variant("fused").call
    assert same_bits(call(**inputs), call(**far))
    assert same_state(inputs, far)


def test_no_rows_give_no_rows_and_launch_nothing(kernel: Kernel, module: ModuleType, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = kernel.make_inputs(case(HV=2), Generator(20))
    before = clone(inputs)
    none = {name: inputs[name][:0] for name in ("mixed_qkv", "a", "b", "write_pos", "state_indices")}
    monkeypatch.setattr(module, "_gdn_replayssm_decode", None)  # a launch would subscript it
    assert (0, 1, 2, 8) == call(**{**inputs, **none}).shape
    assert same_state(before, inputs)


def test_rows_without_slots_are_padded_ones(kernel: Kernel, call: Call) -> None:
    inputs = kernel.make_inputs(case(pad=2), Generator(20))
    assert same_bits(torch.zeros(2, 1, 1, 8), call(**{**inputs, **{name: inputs[name][:0] for name in MUTATED}}))


# Drift


def storage_error(kernel: Kernel, one: Case) -> dict[str, float]:
    """By tensor, the worst relative L2 error, at the checkpoints, of the reference whose state and rings are rounded when stored."""
    drift = drift_of(kernel)
    generator = Generator(21)
    inputs = kernel.make_inputs(one, generator)
    dtypes = {name: inputs[name].dtype for name in MUTATED}
    slots = [slot for _, slot, _ in live_rows(inputs)]
    exact = stored = {name: inputs[name].double() for name in MUTATED}
    worst = dict.fromkeys(MUTATED, 0.0)
    for step in range(1, 101):
        if step > 1:
            inputs.update(drift.step_inputs(one, generator))
        exact, stored = (
            {name: value for name, value in kernel.reference(**{**inputs, **carried}).items() if name in MUTATED}
            for carried in (exact, stored)
        )
        stored = {name: value.to(dtypes[name]).double() for name, value in stored.items()}
        if step in drift.checkpoints or step > 100 - one.L:
            worst = {name: max(error, rel_l2(stored[name][slots], exact[name][slots])) for name, error in worst.items()}
        cycle_of(kernel).advance(inputs)
    return worst


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_drift_allows_three_times_what_storage_alone_gives(kernel: Kernel, dtype: str) -> None:
    errors = storage_error(kernel, case(dtype, HV=2, K=32, V=32, L=8))
    limits = {name: drift_of(kernel).tolerance[dtype].limit(name) for name in MUTATED}
    assert {} == {name: error for name, error in errors.items() if not 3 * error <= limits[name]}
    if dtype != "fp32":
        assert all(limits[name] <= 6 * errors[name] for name in ("state", "ring_d", "ring_k"))


def test_drift_carries_state_and_rings_and_leaves_the_position_to_the_cycle(kernel: Kernel) -> None:
    drift = drift_of(kernel)
    assert {name: name for name in MUTATED} == drift.carry
    assert {"mixed_qkv", "a", "b"} == set(drift.step_inputs(case(), Generator(0)))
    assert "write_pos" == cycle_of(kernel).cursor


# Refusals


def tensors(**changes: torch.Tensor) -> dict[str, Any]:
    """Arguments that are taken: B=2, H=2, HV=6, K=16, V=8, L=4, three slots."""
    return {
        "mixed_qkv": torch.zeros(2, 2 * 2 * 16 + 6 * 8),
        "a": torch.zeros(2, 6),
        "b": torch.zeros(2, 6),
        "A_log": torch.zeros(6),
        "dt_bias": torch.zeros(6),
        "state": torch.zeros(3, 6, 8, 16),
        "ring_d": torch.zeros(3, 6, 4, 8),
        "ring_k": torch.zeros(3, 2, 4, 16),
        "ring_g": torch.zeros(3, 6, 4),
        "write_pos": torch.tensor([0, 3], dtype=torch.int32),
        "state_indices": torch.tensor([0, 1], dtype=torch.int32),
        "nk": 1,
        **changes,
    }


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "value heads no multiple of key heads": ({"mixed_qkv": torch.zeros(2, 2 * 4 * 16 + 6 * 8)}, r"HV=6 is no multiple of H=4"),
    "width that fits no H": ({"mixed_qkv": torch.zeros(2, 113)}, "mixed_qkv has 113 columns"),
    "dtype of a": ({"a": torch.zeros(2, 6).half()}, r"a has .*float16.*give \(2, 6\) of torch.float32"),
    "a state that is not fp32": ({"state": torch.zeros(3, 6, 8, 16).bfloat16()}, r"state has .*bfloat16.*float32"),
    "axes of ring_d": ({"ring_d": torch.zeros(3, 6, 32)}, r"ring_d has shape \(3, 6, 32\).*give ring_d \(slots, HV, L, V\)"),
    "slots of ring_d": ({"ring_d": torch.zeros(2, 6, 4, 8)}, r"ring_d has shape \(2, 6, 4, 8\).*give \(3, 6, 4, 8\)"),
    "dtype of ring_d": ({"ring_d": torch.zeros(3, 6, 4, 8).half()}, r"ring_d has .*float16.*give .*float32"),
    "dtype of ring_k": ({"ring_k": torch.zeros(3, 2, 4, 16).half()}, r"ring_k has .*float16.*give .*float32"),
    "length of ring_k": ({"ring_k": torch.zeros(3, 2, 5, 16)}, r"ring_k has shape \(3, 2, 5, 16\).*give \(3, 2, 4, 16\)"),
    "heads of ring_k": ({"ring_k": torch.zeros(3, 6, 4, 16)}, r"ring_k has shape .*give \(3, 2, 4, 16\)"),
    "dtype of ring_g": ({"ring_g": torch.zeros(3, 6, 4).bfloat16()}, r"ring_g has .*bfloat16.*float32"),
    "records that lie apart": ({"ring_d": torch.zeros(3, 6, 5, 8)[:, :, :4]}, "ring_d has strides .*each slot must be contiguous"),
    "slots that overlap": ({"ring_k": torch.zeros(1, 2, 4, 16).expand(3, 2, 4, 16)}, "ring_k has strides .*each slot must be contiguous"),
    "no records": (
        {"ring_d": torch.zeros(3, 6, 0, 8), "ring_k": torch.zeros(3, 2, 0, 16), "ring_g": torch.zeros(3, 6, 0)},
        "ring_d has L=0 records: give 1 to 64",
    ),
    "too many records": (
        {"ring_d": torch.zeros(3, 6, 65, 8), "ring_k": torch.zeros(3, 2, 65, 16), "ring_g": torch.zeros(3, 6, 65)},
        "ring_d has L=65 records: give 1 to 64",
    ),
    "more keys than registers": (
        {
            "mixed_qkv": torch.zeros(2, 2 * 1024 + 1),
            "state": torch.zeros(3, 1, 1, 1024),
            "ring_d": torch.zeros(3, 1, 17, 1),
            "ring_k": torch.zeros(3, 1, 17, 1024),
            "ring_g": torch.zeros(3, 1, 17),
            **{name: torch.zeros(2, 1) for name in ("a", "b")},
            **{name: torch.zeros(1) for name in ("A_log", "dt_bias")},
        },
        "L=17 with K=1024.*give L up to 16",
    ),
    "dtype of write_pos": ({"write_pos": torch.tensor([0, 3])}, r"write_pos has .*int64.*int32"),
    "a position a slot": ({"write_pos": torch.zeros(3, dtype=torch.int32)}, r"write_pos has shape \(3,\).*give \(2,\)"),
    "write_pos on another device": ({"write_pos": torch.zeros(2, dtype=torch.int32, device="meta")}, "write_pos is on meta.*cpu"),
    "no keys": ({"mixed_qkv": torch.zeros(2, 6 * 8), "state": torch.zeros(3, 6, 8, 0)}, r"state .*\(3, 6, 8, 0\), so K=0: .*1 to 1024"),
    "chunks below 16": ({"nk": 2}, "nk=2 with K=16: give nk=1: one chunk, or chunks of at least 16 of the 16"),
    "chunks that do not divide K": ({"nk": 3}, "nk=3 with K=16: give nk=1"),
    "no chunks": ({"nk": 0}, "nk=0 with K=16: give nk=1"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refuses(call: Call, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"gdn_replayssm_decode: .*{message}"):
        call(**tensors(**change))


def test_refusal_of_chunks_names_those_that_are_taken(module: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"nk=16 with K=100: give nk=1 or 2 or 4 or 8: .*of the 128"):
        module.count_chunks(16, 100, 128)


def test_takes_what_refusals_change(call: Call) -> None:
    assert (2, 1, 6, 8) == call(**tensors()).shape


# Cost model


def held(one: Case, phase: int) -> Case:
    return Case(dtype=one.dtype, **{**one.axes, "phase": phase})


def test_traffic_at_a_position_is_the_sum_of_what_live_rows_touch(kernel: Kernel) -> None:
    for one in kernel.cases:
        inputs = kernel.make_inputs(one, Generator(0, "meta"))
        out_bytes = one.B * one.HV * one.V * inputs["mixed_qkv"].element_size()
        size = {name: value.numel() * value.element_size() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        live = one.B - one.pad
        state = size["state"] // (one.B + 1) * live
        record = sum(size[name] for name in ("ring_d", "ring_k", "ring_g")) // (one.B + 1) // one.L * live
        rows = sum(size[name] for name in ("mixed_qkv", "a", "b")) // one.B * live
        position = size["write_pos"] // one.B * live if one.L > 1 else 0
        for phase in {0, one.L // 2, one.L - 1}:
            found = kernel.traffic(held(one, phase))
            read = rows + position + state + phase * record + sum(size[name] for name in ("A_log", "dt_bias", "state_indices"))
            written = out_bytes + (state if phase == one.L - 1 else record)
            assert (read, written) == (found.read_bytes, found.written_bytes), (one.key, phase)


def test_traffic_of_a_cycle_is_the_mean_over_its_positions(kernel: Kernel) -> None:
    for one in kernel.cases:
        if not isinstance(one.phase, int):
            phases = [kernel.traffic(held(one, phase)) for phase in range(one.L)]
            found = kernel.traffic(one)
            assert sum(t.read_bytes for t in phases) / one.L == pytest.approx(found.read_bytes, abs=0.5), one.key
            assert sum(t.written_bytes for t in phases) / one.L == pytest.approx(found.written_bytes, abs=0.5), one.key


def test_a_cycle_moves_half_of_the_state_and_its_lth_part(kernel: Kernel, unbuffered: Kernel) -> None:
    packed = unbuffered.traffic(unbuffered.case("B=256,H=16,HV=32,K=128,V=128,dtype=bf16")).total
    found = {length: kernel.traffic(kernel.case(f"B=256,H=16,HV=32,K=128,V=128,L={length},dtype=bf16")).total for length in (1, 8, 16)}
    state = 2 * 256 * 32 * 128 * 128 * 4
    ring = {length: 256 * ((32 + 16) * 128 * 2 + 32 * 4) * ((length - 1) / 2 + 1 - 1 / length) for length in found}
    expected = {length: packed - state / 2 * (1 - 1 / length) + ring[length] + 1024 * (length > 1) for length in found}
    assert expected == pytest.approx(found, abs=1)


def test_flops_count_live_rows_and_the_part_of_steps_that_fold(kernel: Kernel) -> None:
    state = 32 * 128 * 128
    expected = {
        "B=1,H=16,HV=32,K=128,V=128,L=1,dtype=bf16": 7 * state,
        "B=1,H=16,HV=32,K=128,V=128,L=8,phase=4,dtype=bf16": 4 * state,
        "B=1,H=16,HV=32,K=128,V=128,L=8,phase=7,dtype=bf16": 21 * state,
        "B=16,H=16,HV=32,K=128,V=128,L=8,dtype=bf16": 16 * state * (7 * 4 + 21) // 8,
        "B=16,H=16,HV=48,K=128,V=128,L=8,pad=16,phase=mixed,dtype=bf16": 0,
    }
    assert expected == {key: kernel.flops(kernel.case(key)) for key in expected}


# Launch plan

PLANS = {
    "a lone row leaves no multiprocessor idle": ((32, 128, 128, 8), {"small": (16, 1), "large": (8, 1), "wave64": (4, 1)}),
    "many rows take all that a warp holds": ((8192, 128, 128, 16), {"small": (16, 1), "large": (16, 1), "wave64": (32, 1)}),
    "no records leave room for none": ((8192, 128, 128, 1), {"small": (8, 1), "large": (8, 1), "wave64": (16, 1)}),
    "more records take more warps": ((8192, 128, 128, 64), {"small": (64, 4), "large": (64, 4), "wave64": (64, 2)}),
    "wide keys take more warps too": ((8192, 64, 1024, 16), {"small": (16, 8), "large": (16, 8), "wave64": (16, 4)}),
    "no more than the values there are": ((8192, 3, 16, 8), {"small": (4, 1), "large": (4, 1), "wave64": (4, 1)}),
    "short keys leave room for the values of records": (
        (8192, 2048, 1, 64),
        {"small": (128, 1), "large": (128, 1), "wave64": (256, 1)},
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), PLANS.values(), ids=PLANS)
def test_rows_and_warps_of_a_program(module: ModuleType, arguments: tuple[int, int, int, int], expected: dict[str, int]) -> None:
    found = {}
    for name, gpu in GPUS.items():
        with pretend(gpu):
            found[name] = module.plan_program(*arguments)
    assert expected == found


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_programs_of_model_sizes_are_one_warp_of_one_to_sixteen_vectors_a_lane(
    module: ModuleType, kernel: Kernel, gpu: DeviceProperties
) -> None:
    for one in kernel.cases:
        if "model" in one.tags:
            with pretend(gpu):
                tile, warps = module.plan_program(one.B * one.HV, one.V, one.K, one.L)
            assert 1 == warps, one.key
            assert 16 * gpu.warp_size <= tile * one.K * 4 <= 256 * gpu.warp_size, one.key


# The cases


def test_peers_are_an_append_and_a_fold_of_each_length_at_four_batches(kernel: Kernel) -> None:
    timed = [(1, "cycle"), (8, 4), (8, 7), (16, 8), (16, 15)]
    expected = {(b, 16, 32, 128, 128, length, phase, "io", 2, "bf16") for b in (1, 16, 64, 256) for length, phase in timed}
    peers = [(c.B, c.H, c.HV, c.K, c.V, c.L, c.phase, c.ring, c.nk, c.dtype) for c in kernel.cases if "peers" in c.tags]
    assert expected == set(peers)
    assert len(expected) == len(peers)


def test_three_cases_are_headline(kernel: Kernel) -> None:
    headline = [(c.B, c.L, c.phase) for c in kernel.cases if "headline" in c.tags]
    assert [(1, 8, "cycle"), (16, 8, "cycle"), (64, 8, "cycle")] == headline


def test_cases_hold_every_length_batch_and_split_of_the_catalogue(kernel: Kernel) -> None:
    model = [c for c in kernel.cases if "model" in c.tags and (c.H, c.K, c.V) == (16, 128, 128)]
    cycles = {(c.B, c.L) for c in model if (c.HV, c.phase, c.nk, c.dtype) == (32, "cycle", 2, "bf16")}
    assert {(b, length) for b in (1, 16, 64, 256) for length in (1, 8, 16)} == cycles
    wide = {(c.B, c.dtype) for c in model if c.phase == "cycle"}
    assert {(b, dtype) for b in (1, 16, 64, 256) for dtype in ("fp32", "fp16", "bf16")} == wide
    assert {1, 16, 64, 256} <= {c.B for c in model if c.HV == 48}
    assert {1, 2, 4} == {c.nk for c in model}


def test_cpu_cases_cover_every_option_and_are_small_enough(kernel: Kernel, module: ModuleType) -> None:
    cpu = [c for c in kernel.cases if "cpu" in c.tags]
    for dtype in ("fp32", "fp16", "bf16"):
        of_dtype = [c for c in cpu if c.dtype == dtype]
        assert any("ragged" in c.tags for c in of_dtype)
        assert any(c.phase == "mixed" for c in of_dtype)
    assert {"io", "fp32"} == {c.ring for c in cpu}
    assert {0, 1} == {c.strided for c in cpu}
    assert {1, 8, 16} <= {c.L for c in cpu}
    assert {1, 2, 4} == {c.nk for c in cpu}
    assert {1, 2, 3} == {c.HV // c.H for c in cpu}
    assert any(0 < c.pad < c.B for c in cpu)
    assert any(c.pad == c.B for c in cpu)
    assert {True, False} == {c.phase == c.L - 1 for c in cpu if isinstance(c.phase, int)}
    for c in cpu:
        tile, _ = module.plan_program(c.B * c.HV, c.V, 1 << (c.K - 1).bit_length(), 1 << (c.L - 1).bit_length())
        assert c.B * c.HV * -(-c.V // tile) <= (4 if "drift" in c.tags else 200), c.key


def test_drift_cases_have_rows_in_different_phases(kernel: Kernel) -> None:
    found = sorted((c.dtype, c.ring, c.phase, "model" in c.tags) for c in kernel.cases if "drift" in c.tags)
    expected = [(dtype, False) for dtype in ("bf16", "fp32")] + [(dtype, True) for dtype in ("bf16", "fp16", "fp32")]
    assert sorted((dtype, "io", "mixed", is_model) for dtype, is_model in expected) == found


def test_records_look_like_those_that_a_step_makes(kernel: Kernel) -> None:
    inputs = kernel.make_inputs(case("bf16", B=4, H=4, HV=8, K=64, V=64, L=16, phase=8), Generator(22))
    made = kernel.reference(**inputs)
    slots, position = inputs["state_indices"].long(), 8
    for name, ratio in (("ring_d", 1.5), ("ring_k", 1.1)):
        new = made[name][slots, :, position].square().mean().sqrt()
        assert new / ratio <= inputs[name].double().square().mean().sqrt() <= new * ratio, name
    assert inputs["ring_g"].max() < 0
    assert inputs["ring_g"].max() > -2e-3
    assert inputs["ring_g"].median() > -0.25


def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(kernel: Kernel) -> None:
    for one in kernel.cases:
        if "cpu" in one.tags:
            real, meta = (kernel.make_inputs(one, Generator(0, device)) for device in ("cpu", "meta"))
            assert list(real) == list(meta)
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    found = meta[name]
                    assert (value.shape, value.stride(), value.dtype) == (found.shape, found.stride(), found.dtype), (one.key, name)
