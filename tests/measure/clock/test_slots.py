from types import SimpleNamespace

import pytest
import torch
from toys import SCALE, subject_of

from harness import Case
from harness.measure.clock.content import group
from harness.measure.clock.slots import SlotRing
from harness.measure.data import Generator, content_hash
from harness.measure.extents import dense_bytes, tensors_on
from harness.measure.guards import poison, unwritten


def layouts(seed=0):
    """Inputs of every awkward layout, with content that depends on the seed."""
    g = Generator(seed)
    packed = g.uniform((4, 16), "bf16")
    return {
        "x": g.uniform((3, 10))[:, :7],
        "gate": packed[:, :8],
        "up": packed[:, 8:],
        "odd": g.uniform((9,), "fp16")[1:],
        "row": g.uniform((1, 5)).expand(4, 5),
        "index": g.permutation(6),
        "empty": g.uniform((0, 3)),
        "eps": 1e-6,
        "bias": None,
    }


@pytest.fixture
def ring():
    return SlotRing(layouts(), slots=5, torch_device="cpu")


@pytest.mark.parametrize("name", ["x", "gate", "up", "odd", "row", "index", "empty"])
def test_slots_keep_shape_strides_dtype_and_alignment(ring, name):
    original = layouts()[name]
    for slot in range(5):
        view = ring.inputs(slot)[name]
        assert (view.shape, view.stride(), view.dtype) == (original.shape, original.stride(), original.dtype)
        assert view.data_ptr() % 256 == original.storage_offset() * original.element_size() % 256


def test_what_is_no_tensor_is_shared(ring):
    assert [(ring.inputs(s)["eps"], ring.inputs(s)["bias"]) for s in (0, 4)] == [(1e-6, None)] * 2


def test_content_is_copied_into_one_slot_alone(ring):
    ring.load(2, layouts(seed=1))
    for name, expected in tensors_on(layouts(seed=1), "cpu").items():
        assert torch.equal(ring.inputs(2)[name], expected)
        assert not ring.inputs(1)[name].any()


def test_tensors_that_share_memory_still_do(ring):
    gate, up = ring.inputs(3)["gate"], ring.inputs(3)["up"]
    assert up.data_ptr() - gate.data_ptr() == 16
    assert [sorted(g.names) for g in group(layouts(), "cpu") if "up" in g.names] == [["gate", "up"]]


def test_slots_do_not_overlap(ring):
    for slot in range(5):
        for tensor in tensors_on(ring.inputs(slot), "cpu").values():
            if tensor.numel() and tensor.stride() != (0, 1):
                tensor.fill_(slot + 1)
    found = {s: {int(t.flatten()[0]) for n, t in tensors_on(ring.inputs(s), "cpu").items() if t.numel() and n != "row"} for s in range(5)}
    assert found == {s: {s + 1} for s in range(5)}


def test_a_ring_is_filled_from_few_contents_in_turn():
    subject = subject_of(SCALE)
    ring = SlotRing(subject.inputs(0), slots=5, torch_device="cpu")
    first = ring.fill([10, 11], subject)
    expected = [subject.inputs(seed)["x"] for seed in (10, 11, 10, 11, 10)]
    assert all(torch.equal(ring.inputs(s)["x"], x) for s, x in enumerate(expected))
    assert first == content_hash(subject.inputs(10))


@pytest.mark.parametrize(("spare_bytes", "drawn_again"), [(0, True), (1 << 20, False)], ids=["no memory to keep", "kept"])
def test_what_calls_change_is_reset_from_what_was_kept(spare_bytes, drawn_again):
    subject, drawn = subject_of(SCALE), []
    spied = SimpleNamespace(inputs=lambda seed: drawn.append(seed) or subject.inputs(seed))
    ring = SlotRing(subject.inputs(0), slots=5, torch_device="cpu")
    ring.keep(["x"], 2, spare_bytes)
    ring.fill([10, 11], spied)
    drawn.clear()
    ring.everywhere("x").fill_(0)
    ring.fill([10, 11], spied, only=["x"])
    assert all(torch.equal(ring.inputs(s)["x"], subject.inputs(10 + s % 2)["x"]) for s in range(5))
    assert ([10, 11] if drawn_again else []) == drawn


def test_only_named_inputs_are_filled_again(ring):
    ring.load(0, layouts(seed=1))
    before = ring.inputs(0)["x"].clone()
    subject = subject_of(SCALE)
    ring.fill([3], subject, only=())
    assert torch.equal(ring.inputs(0)["x"], before)


def test_every_slots_memory_of_one_input_is_one_flat_tensor(ring):
    ring.everywhere("index").add_(1)
    assert all(torch.equal(ring.inputs(s)["index"], torch.ones(6, dtype=torch.int32)) for s in range(5))


def test_layout_on_meta_is_the_layout_in_memory():
    case = Case(N=8, dtype="fp32")
    make = subject_of(SCALE).kernel.make_inputs
    assert group(make(case, Generator(0, "meta")), "meta") == group(make(case, Generator(0)), "cpu")


def test_an_expanded_tensor_counts_its_memory_and_a_strided_one_its_elements():
    g = Generator(0)
    assert dense_bytes({"row": g.uniform((1, 5)).expand(4, 5)}, "cpu") == 20
    assert dense_bytes({"x": g.uniform((3, 10))[:, :7]}, "cpu") == 84


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64])
def test_poison_is_seen_as_unwritten(dtype):
    tensor = torch.zeros(4, 6, dtype=dtype)[:, :5]
    poison(tensor)
    assert bool(unwritten(tensor).all())
