import pickle

import pytest

from harness import Case, DeclarationError, Kernel, Tolerance, Traffic, Variant


def kernel(**changes):
    given = {
        "variants": {"fast": lambda x: x, "plain": Variant(lambda x: x, triton=False)},
        "default": "fast",
        "baseline": "plain",
        "axes": ("M", "N", "eps"),
        "defaults": {"eps": 1e-6},
        "cases": [Case(M=1, N=2, dtype="fp32", tags="smoke cpu")],
        "make_inputs": lambda case, generator: {},
        "reference": lambda **inputs: {},
        "outputs": ("y",),
        "tolerance": {"fp32": Tolerance(1e-6, "rounding")},
        "traffic": lambda case: Traffic(1, 1),
        "flops": lambda case: 1,
    }
    return Kernel(**{**given, **changes})


@pytest.mark.parametrize(
    ("axes", "key"),
    [
        ({"M": 1, "N": 2}, "M=1,N=2,dtype=fp32"),
        ({"N": 2, "M": 1}, "M=1,N=2,dtype=fp32"),
        ({"M": 1, "N": 2, "eps": 1e-6}, "M=1,N=2,dtype=fp32"),
        ({"M": 1, "N": 2, "eps": 1e-5}, "M=1,N=2,eps=1e-5,dtype=fp32"),
        ({"M": 1, "N": 2, "strided": 1}, "M=1,N=2,strided=1,dtype=fp32"),
    ],
    ids=["declared order", "kernel's order wins", "a default is left out", "another value is shown", "strided is an axis of every kernel"],
)
def test_the_key_of_a_case(axes, key):
    assert kernel(cases=[Case(**axes, dtype="fp32", tags="smoke")]).cases[0].key == key


def test_axes_left_out_have_their_defaults():
    assert kernel().cases[0].eps == 1e-6


def test_a_case_is_found_by_its_key():
    one = kernel()
    assert one.case("M=1,N=2,dtype=fp32") is one.cases[0]


@pytest.mark.parametrize("value", ["", "a/b", "a@b", "a,b", "a=b", "a b", "a\nb", "a\x00b"], ids=repr)
def test_an_axis_value_that_a_cells_name_cannot_hold_is_refused(value):
    with pytest.raises(DeclarationError, match="it is part of a cell's name"):
        Case(mode=value, dtype="fp32")


@pytest.mark.parametrize("value", ["after", "a-b.c+d", "1e3", "é"])
def test_any_other_text_is_an_axis_value(value):
    assert Case(mode=value, dtype="fp32").mode == value


def test_a_case_survives_pickling():
    case = kernel().cases[0]
    assert pickle.loads(pickle.dumps(case)) == case


def test_a_grid_is_every_combination():
    keys = [(c.M, c.dtype) for c in Case.grid(M=[1, 2], N=4, dtype=["fp32", "bf16"], tags="ragged")]
    assert keys == [(1, "fp32"), (1, "bf16"), (2, "fp32"), (2, "bf16")]


def test_a_plain_function_is_a_triton_variant():
    one = kernel()
    assert [(n, one.variant(n).triton) for n in one.variants] == [("fast", True), ("plain", False)]


def test_a_variant_has_the_kernels_outputs_unless_it_says_otherwise():
    one = kernel(variants={"fast": lambda x: x, "plain": Variant(lambda x: x, outputs=("y", "state"))})
    assert (one.variant("fast").outputs, one.variant("plain").outputs) == (("y",), ("y", "state"))


def test_a_variant_has_the_kernels_traffic_unless_it_does_a_part_of_the_work():
    part = Variant(lambda x: x, traffic=lambda case: Traffic(case.M, case.N))
    one = kernel(variants={"fast": lambda x: x, "plain": lambda x: x, "part": part})
    found = {name: one.traffic_of(name, one.cases[0]) for name in one.variants}
    assert {"fast": Traffic(1, 1), "plain": Traffic(1, 1), "part": Traffic(1, 2)} == found
    with pytest.raises(KeyError):
        one.traffic_of("slow", one.cases[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"default": "slow"}, "default variant 'slow': the variants are fast, plain"),
        ({"baseline": "slow"}, "baseline variant 'slow'"),
        ({"cases": []}, "the kernel has none"),
        ({"cases": [Case(M=1, N=2, dtype="fp32")]}, "at least one `smoke`"),
        ({"cases": [Case(M=1, dtype="fp32", tags="smoke")]}, "axis 'N' has no value and no default"),
        ({"cases": [Case(M=1, N=2, Q=3, dtype="fp32", tags="smoke")]}, "case axis 'Q': the axes are M, N, eps, strided"),
        ({"cases": [Case(M=1, N=2, dtype="fp32", tags="smoke")] * 2}, "declared twice"),
        ({"cases": [Case(M=1, N=2, dtype="bf16", tags="smoke")]}, "no tolerance for bf16"),
        ({"reference": None}, "cannot be proved right"),
        ({"outputs": ()}, "neither returns nor mutates"),
        ({"slots": {"state": "indices"}}, "not in mutates"),
        (
            {"variants": {"fast": Variant(lambda x: x, traffic=lambda case: Traffic(1, 1)), "plain": lambda x: x}},
            "default variant 'fast' has a traffic of its own: give it as the kernel's",
        ),
        ({"variants": {"Fast!": lambda x: x}, "default": "Fast!", "baseline": "Fast!"}, "lower-case"),
    ],
)
def test_an_inconsistent_kernel_is_refused(change, message):
    with pytest.raises(DeclarationError, match=message.replace("(", r"\(")):
        kernel(**change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Case(M=1, dtype="fp64"), "dtype 'fp64': the dtypes are fp32, fp16, bf16"),
        (lambda: Case(M=1, dtype="fp32", tags="quick"), "tag 'quick'"),
        (lambda: Case(M=True, dtype="fp32"), "0/1 for flags"),
        (lambda: Tolerance(1e-6, " "), "give the reason"),
        (lambda: Tolerance(float("nan"), "reason"), "must be 0 or more"),
        (lambda: Tolerance(1e-6, "reason", element=0.5), "element is 0.5, it must be 1 or more"),
        (lambda: Tolerance(1e-6, "reason", element=float("nan")), "it must be 1 or more"),
    ],
)
def test_an_inconsistent_part_is_refused(make, message):
    with pytest.raises(DeclarationError, match=message):
        make()
