from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.measure.guards import ALIGNMENT, LEAST_GUARD, MOST_GUARD, Breach, Guards, overwrite, unwritten
from harness.measure.numerics import bit_equal

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")])
LIKE = torch.zeros(3, 5)

FACTORIES: dict[str, Callable[..., torch.Tensor]] = {
    "empty": lambda **kw: torch.empty(3, 5, **kw),
    "empty_like": lambda **kw: torch.empty_like(LIKE, **kw),
    "empty_strided": lambda **kw: torch.empty_strided((3, 5), (8, 1), **kw),
    "new_empty": lambda **kw: LIKE.new_empty((3, 5), **kw),
    "new_empty_strided": lambda **kw: LIKE.new_empty_strided((3, 5), (1, 3), **kw),
    "empty_permuted": lambda **kw: torch.empty_permuted((3, 5), (1, 0), **kw),
}
INITIALISED: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(3, 5),
    "zeros_like": lambda: torch.zeros_like(LIKE),
    "new_zeros": lambda: LIKE.new_zeros(3, 5),
    "ones": lambda: torch.ones(3, 5),
    "full": lambda: torch.full((3, 5), 2.5),
    "new_full": lambda: LIKE.new_full((3, 5), 2.5),
    "full_like": lambda: torch.full_like(LIKE, 2.5),
    "clone": LIKE.clone,
    "cast": lambda: LIKE.to(torch.bfloat16),
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)


def beyond(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """A tensor's memory from its start to `elements` past its end, as an out-of-bounds access sees it."""
    return tensor.as_strided((tensor.numel() + elements,), (1,), tensor.storage_offset())


def ahead(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The `elements` before a tensor's start."""
    return tensor.as_strided((elements,), (1,), tensor.storage_offset() - elements)


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def guards() -> Guards:
    return Guards()


class TestGuardedInputs:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.arange(24.0).reshape(4, 6),
            lambda: torch.arange(24.0).reshape(4, 6).t(),
            lambda: torch.arange(24.0).reshape(4, 6)[:, 1:4],
            lambda: torch.arange(24.0).reshape(4, 6)[::2],
            lambda: torch.arange(6.0).expand(4, 6),
            lambda: torch.tensor(3.0),
            lambda: torch.arange(5, dtype=torch.int8),
            lambda: torch.tensor([True, False]),
            lambda: torch.arange(6).bfloat16(),
        ],
        ids=["matrix", "transposed", "columns", "rows", "expanded", "scalar", "int8", "bool", "bf16"],
    )
    def test_keep_shape_strides_and_content(self, guards: Guards, make: Callable[[], torch.Tensor], device: str) -> None:
        given = make().to(device) if device == "cuda" else make()
        placed = guards.guarded({"x": given})["x"]
        assert placed.data_ptr() != given.data_ptr()
        assert (given.shape, given.stride(), given.device) == (placed.shape, placed.stride(), placed.device)
        assert bit_equal(given, placed)
        assert placed.data_ptr() % ALIGNMENT == 0
        assert guards.check() == []

    def test_pass_other_arguments_on(self, guards: Guards) -> None:
        empty = torch.empty(0, 4)
        placed = guards.guarded({"eps": 1e-6, "bias": None, "empty": empty})
        assert placed == {"eps": 1e-6, "bias": None, "empty": empty}

    def test_keep_one_tensor_under_two_names_one(self, guards: Guards) -> None:
        shared = torch.ones(4)
        placed = guards.guarded({"k": shared, "v": shared})
        assert placed["k"] is placed["v"]


class TestOutOfBoundsWrites:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
    @pytest.mark.parametrize("n", [1000, 1001, 7])
    def test_after_the_end_are_found_to_the_byte(self, guards: Guards, n: int, dtype: torch.dtype, device: str) -> None:
        x = guards.guarded({"x": torch.zeros(n, dtype=dtype, device=device)})["x"]
        beyond(x, 3)[-2:] = 1
        size = dtype.itemsize
        assert guards.check() == [Breach("input x", "after", size, 2 * size)]

    def test_before_the_start_are_found_to_the_byte(self, guards: Guards, device: str) -> None:
        x = guards.guarded({"x": torch.zeros(1000, device=device)})["x"]
        ahead(x, 5)[0] = 1.0
        assert guards.check() == [Breach("input x", "before", 5 * 4 - 3, 4)]

    def test_in_the_gaps_of_a_strided_tensor_are_found(self, guards: Guards, device: str) -> None:
        x = guards.guarded({"x": torch.zeros(4, 10, device=device)[:, :8]})["x"]
        x.as_strided((4, 9), (10, 1))[2, 8] = 1.0
        assert guards.check() == [Breach("input x", "between the rows of", (2 * 10 + 8) * 4, 4)]

    def test_to_row_minus_one_are_found_however_long_the_row(self, guards: Guards) -> None:
        state = guards.guarded({"state": torch.zeros(3, 4 * LEAST_GUARD)})["state"]
        row = state.stride(0)
        state.as_strided((1,), (1,), state.storage_offset() - row)[0] = 1.0
        assert [("before", row * 4 - 3)] == [(breach.side, breach.offset) for breach in guards.check()]

    def test_are_looked_for_within_a_bound(self, guards: Guards) -> None:
        guards.guarded({"x": torch.zeros(1, 2 * MOST_GUARD, dtype=torch.int8)})
        assert guards._houses[0]._buffer.numel() == ALIGNMENT + 2 * MOST_GUARD + 2 * MOST_GUARD

    @pytest.mark.parametrize("make", [*FACTORIES.values(), *INITIALISED.values()], ids=[*FACTORIES, *INITIALISED])
    def test_to_what_the_code_allocates_are_found(self, guards: Guards, make: Callable[[], torch.Tensor]) -> None:
        with guards:
            made = make()
        assert guards.check() == []
        ahead(made, 1)[0] = 1.0
        assert [("before", 2 if made.dtype == torch.bfloat16 else 4)] == [(breach.side, breach.count) for breach in guards.check()]

    def test_that_copy_one_guard_over_another_are_found(self, guards: Guards) -> None:
        placed = guards.guarded({"x": torch.ones(10), "y": torch.ones(10)})
        beyond(placed["y"], 6).copy_(beyond(placed["x"], 6))
        assert [("input y", "after")] == [(breach.label, breach.side) for breach in guards.check()]

    def test_that_store_nan_are_found(self, guards: Guards) -> None:
        x = guards.guarded({"x": torch.ones(10)})["x"]
        beyond(x, 1)[-1] = float("nan")
        assert len(guards.check()) == 1

    def test_inside_the_tensor_are_nobodys_business(self, guards: Guards) -> None:
        x = guards.guarded({"x": torch.zeros(4, 10)[:, :8]})["x"]
        x.fill_(7.0)
        assert guards.check() == []


class TestOutOfBoundsReads:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_give_nan(self, guards: Guards, dtype: torch.dtype) -> None:
        x = guards.guarded({"x": torch.ones(6, 10, dtype=dtype)[:, :8]})["x"]
        around = [beyond(x.as_strided((58,), (1,)), 1)[-1], ahead(x, 1)[0], x.as_strided((6, 10), (10, 1))[0, 8]]
        assert all(value.isnan() for value in around)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16], ids=str)
    @pytest.mark.parametrize("n", [1, 3, 8])
    def test_of_integers_give_an_index_that_is_no_padding(self, guards: Guards, n: int, dtype: torch.dtype, device: str) -> None:
        x = guards.guarded({"x": torch.full((n,), -5, dtype=dtype, device=device)})["x"]
        assert [1, 1, 1] == beyond(x, 3)[-3:].tolist() == ahead(x, 3).tolist()
        assert guards.check() == []
        beyond(x, 1)[-1] = 2
        assert [Breach("input x", "after", 0, 1)] == guards.check()


class TestPoison:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
    def test_fills_what_nothing_has_written(self, guards: Guards, make: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
        plain = make(dtype=dtype)
        with guards:
            made = make(dtype=dtype)
        assert (plain.shape, plain.stride(), plain.dtype) == (made.shape, made.stride(), made.dtype)
        assert unwritten(made).all()
        assert not dtype.is_floating_point or made.isnan().all()
        made[1, 2] = 0
        assert unwritten(made).sum() == 14

    def test_reaches_the_device(self, guards: Guards, device: str) -> None:
        with guards:
            made = torch.empty(100, device=device)
        assert unwritten(made).all()

    @pytest.mark.parametrize("make", INITIALISED.values(), ids=INITIALISED)
    def test_leaves_what_has_content(self, guards: Guards, make: Callable[[], torch.Tensor]) -> None:
        plain = make()
        with guards:
            made = make()
        assert bit_equal(plain, made)
        assert not unwritten(made).any()

    def test_is_no_nan_that_arithmetic_gives(self) -> None:
        zero, infinite = torch.zeros(1), torch.full((1,), float("inf"))
        for nan in (zero / zero, infinite - infinite, (-infinite).sqrt(), torch.full((1,), float("nan")), -(zero / zero)):
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
                assert not unwritten(nan.to(dtype)).any()

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8], ids=str)
    def test_is_not_told_apart_where_every_value_is_common(self, guards: Guards, dtype: torch.dtype) -> None:
        with guards:
            made = torch.empty(64, dtype=dtype)
        assert not unwritten(made).any()

    def test_ends_with_the_block(self, guards: Guards) -> None:
        with guards:
            pass
        torch.empty(4).fill_(1.0)
        assert guards._houses == []

    @pytest.mark.parametrize("make", [lambda: torch.empty(0, 3), lambda: torch.empty(3, device="meta")], ids=["empty", "meta"])
    def test_leaves_what_has_no_memory(self, guards: Guards, make: Callable[[], torch.Tensor]) -> None:
        with guards:
            made = make()
        assert made.shape in ((0, 3), (3,))
        assert guards.check() == []


class TestLabels:
    def test_tell_allocations_apart(self, guards: Guards) -> None:
        with guards:
            torch.empty(4)
            second = torch.zeros(2, 3, dtype=torch.bfloat16)
        beyond(second, 1)[-1] = 1
        assert [breach.label for breach in guards.check()] == ["allocation 2 (zeros [2, 3] torch.bfloat16)"]

    def test_follow_the_name_that_an_allocation_turns_out_to_have(self, guards: Guards) -> None:
        with guards:
            made = torch.empty(8, 4)
        guards.name(made[2:], "output y")
        beyond(made, 1)[-1] = 1
        assert [str(breach) for breach in guards.check()] == ["4 bytes written after output y, nearest at 0 bytes"]

    def test_of_inputs_stay(self, guards: Guards) -> None:
        x = guards.guarded({"x": torch.ones(4)})["x"]
        guards.name(x.view(2, 2), "output y")
        beyond(x, 1)[-1] = 2
        assert [breach.label for breach in guards.check()] == ["input x"]


class TestOverwrite:
    @pytest.mark.parametrize(
        "target",
        [torch.zeros(3, 4), torch.zeros(4, 3).t(), torch.zeros(3, 8)[:, ::2], torch.zeros(4).expand(3, 4)],
        ids=["dense", "t", "gaps", "expand"],
    )
    def test_replaces_content_in_place(self, target: torch.Tensor) -> None:
        content = torch.arange(4.0).expand(3, 4)
        where = target.data_ptr()
        overwrite(target, content)
        assert torch.equal(target, content)
        assert target.data_ptr() == where


def test_code_runs_as_without_guards(guards: Guards) -> None:
    def code(x: torch.Tensor) -> Any:
        y = torch.empty(x.shape[::-1])
        y.copy_(x.t())
        return torch.nn.functional.softmax(y.bfloat16() @ x.bfloat16(), dim=-1).to(torch.float32), torch.cat([x, torch.zeros_like(x)])

    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    placed = guards.guarded({"x": x})["x"]
    with guards:
        found = code(placed)
    assert all(bit_equal(one, other) for one, other in zip(code(x), found, strict=True))
    assert guards.check() == []


def test_a_compiled_variant_is_checked_as_compiled(guards: Guards) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, example: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    call = torch.compile(lambda x: torch.empty_like(x).copy_(2 * x), backend=backend)
    with guards:
        call(torch.ones(4))
    assert ["empty_like", "mul", "copy_"] == [node.name for graph in graphs for node in graph.graph.nodes if node.op.startswith("call")]


def test_guards_need_nothing_that_torch_imports_late() -> None:
    """A launch is a fresh process: torch's compiler would cost it seconds."""
    code = (
        "import sys, torch\nfrom harness.measure.guards import Guards\nfrom harness.measure.numerics import compare\n"
        "guards = Guards()\nx = guards.guarded({'x': torch.ones(2, 3)})['x']\n"
        "with guards:\n    y = torch.empty_like(x).copy_(x)\n"
        "compare(y, x), guards.check()\nprint('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
