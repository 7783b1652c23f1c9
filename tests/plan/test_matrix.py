import pytest

from harness.devices.table import load_devices
from harness.errors import UnknownNameError, WorkspaceError
from harness.plan.describe import CaseInfo, Description, KernelInfo, KindCell, KindInfo
from harness.plan.jobs import make_jobs
from harness.plan.matrix import Entry, Filters, expand, read_matrix
from harness.records import Cell, Expected

CASES = [CaseInfo("N=1,dtype=fp32", ["cpu", "smoke"]), CaseInfo("N=2,dtype=fp32", [])]


def description():
    kernels = [KernelInfo(n, f"kernels/{n}.py", "", ["fast"], "fast", "fast", CASES, [], False, False) for n in ("add", "mul")]
    cells = [KindCell(k.name, "fast", c.case, None) for k in kernels for c in CASES]
    static = KindInfo("static", "static.py", "host", 1.0, 60.0, False, cells)
    return Description(kernels, [static, KindInfo("latency", "latency.py", "unit", 2.0, 60.0, True, cells)])


def cells(entries, **filters):
    return [(e.kind, str(e.cell)) for e in expand(entries, description(), load_devices(), Filters(**filters))]


def test_cpu_runs_only_cases_tagged_cpu():
    assert cells([Entry("latency", ("cpu",), frozenset())]) == [
        ("latency", "add/fast/N=1,dtype=fp32@cpu"),
        ("latency", "mul/fast/N=1,dtype=fp32@cpu"),
    ]


def test_a_host_kind_needs_a_compile_target():
    assert cells([Entry("static", ("cpu",), frozenset())]) == []


def test_a_tag_selects_cases():
    assert len(cells([Entry("latency", ("h200",), frozenset({"smoke"}))])) == 2


def test_a_cell_of_two_entries_is_planned_once():
    entries = [Entry("latency", ("h200",), frozenset()), Entry("latency", ("nvidia",), frozenset({"smoke"}))]
    assert len(cells(entries, devices=("h200",))) == 4


def test_a_kernel_glob_selects():
    assert {c.split("/")[0] for _, c in cells([Entry("latency", ("h200",), frozenset())], kernels=("a*",))} == {"add"}


def test_all_adds_every_row_where_an_entry_has_gpus():
    entry = Entry("static", ("fleet",), frozenset({"smoke"}))
    targets = [name for name, d in load_devices().items() if d.triton_target]
    assert {c.rpartition("@")[2] for _, c in cells([entry], devices=("all",))} == set(targets)


def test_a_named_gpu_leaves_an_entry_of_cpu_alone_out():
    assert cells([Entry("latency", ("cpu",), frozenset())], devices=("h200",)) == []


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"kernels": ("sub",)}, "kernel 'sub'"),
        ({"variants": ("fust",)}, "use 'fast'"),
        ({"cases": ("N=3*",)}, "case 'N=3"),
        ({"devices": ("h20",)}, "use 'h200'"),
        ({"kinds": ("latancy",)}, "use 'latency'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest(filters, message):
    with pytest.raises(UnknownNameError, match=message):
        cells([Entry("latency", ("h200",), frozenset())], **filters)


def test_a_case_is_looked_for_in_the_kernels_that_are_asked_for():
    other = KernelInfo("mul", "kernels/mul.py", "", ["slow"], "slow", "slow", [CaseInfo("N=3,dtype=fp32", [])], [], False, False)
    add = KernelInfo("add", "kernels/add.py", "", ["fast"], "fast", "fast", CASES, [], False, False)
    kind = KindInfo("static", "static.py", "host", 1.0, 60.0, False, [])
    for filters in (Filters(kernels=("add",), cases=("N=3*",)), Filters(kernels=("add",), variants=("slow",))):
        with pytest.raises(UnknownNameError) as caught:
            expand([Entry("static", ("h200",))], Description([add, other], [kind]), load_devices(), filters)
        assert caught.value.found in ("known: N=1,dtype=fp32; N=2,dtype=fp32", "known: fast")


def test_variants_are_chosen_by_what_they_are_to_their_kernel():
    kernel = KernelInfo("add", "kernels/add.py", "", ["fast", "slow", "torch"], "fast", "torch", CASES, [], False, False)
    kind = KindInfo("static", "static.py", "host", 1.0, 60.0, False, [KindCell("add", v, CASES[0].case, None) for v in kernel.variants])
    found = {
        roles: [
            e.cell.variant
            for e in expand([Entry("static", ("h200",), variants=roles)], Description([kernel], [kind]), load_devices(), Filters())
        ]
        for roles in (frozenset(), frozenset({"default"}), frozenset({"default", "baseline"}))
    }
    assert [["fast", "slow", "torch"], ["fast"], ["fast", "torch"]] == list(found.values())


def test_cases_and_variants_are_filtered_by_glob():
    entries = [Entry("static", ("h200",))]
    assert [("static", "mul/fast/N=2,dtype=fp32@h200")] == cells(entries, kernels=("m*",), variants=("f*",), cases=("N=2,*",))


def test_a_matrix_is_read_by_name(tmp_path):
    text = '[[night.cells]]\nkind = "latency"\ndevices = ["h200"]\ntags = ["smoke"]\nvariants = ["default"]\n'
    (tmp_path / "matrix.toml").write_text(text)
    assert read_matrix("night", tmp_path) == [Entry("latency", ("h200",), frozenset({"smoke"}), frozenset({"default"}))]


def test_a_matrix_is_read_from_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[[cells]]\nkind = "static"\ndevices = ["fleet"]\n')
    assert read_matrix(str(file), tmp_path) == [Entry("static", ("fleet",), frozenset())]


def test_a_matrix_in_a_file_has_no_name(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[[mine.cells]]\nkind = "static"\ndevices = ["fleet"]\n')
    with pytest.raises(WorkspaceError) as caught:
        read_matrix(str(file), tmp_path)
    assert "no list `cells`, but [[mine.cells]]" == caught.value.found
    assert caught.value.do.startswith("give [[cells]] entries")
    file.write_text(file.read_text().replace("mine.cells", "cells"))  # what it says to do helps
    assert [Entry("static", ("fleet",))] == read_matrix(str(file), tmp_path)


def test_an_empty_file_is_no_matrix(tmp_path):
    file = tmp_path / "mine.toml"
    file.touch()
    with pytest.raises(WorkspaceError, match=r"give \[\[cells\]\] entries"):
        read_matrix(str(file), tmp_path)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[[day.cells]]\nkind='x'\ndevices=['h200']\n", UnknownNameError, "matrix 'night'"),
        ("[night\n", WorkspaceError, "bad TOML"),
        ("[night]\n", WorkspaceError, r"give \[\[night\.cells\]\] entries"),
        ("[[night.cells]]\nkind='x'\n", WorkspaceError, "an entry has kind, devices"),
        ("[[night.cells]]\nkind='x'\ndevices='h200'\n", WorkspaceError, "a list of strings"),
        ("[[night.cells]]\nkind='x'\ndevices=['h200']\ntags=['smokey']\n", UnknownNameError, "use 'smoke'"),
        ("[[night.cells]]\nkind='x'\ndevices=['h200']\nvariants=['fused']\n", UnknownNameError, "baseline, default"),
    ],
)
def test_a_bad_matrix_is_refused(tmp_path, text, error, message):
    (tmp_path / "matrix.toml").write_text(text)
    with pytest.raises(error, match=message):
        read_matrix("night", tmp_path)


def test_jobs_hold_one_kernel_kind_and_device_and_split_at_five_minutes():
    cases = [CaseInfo(f"N={n},dtype=fp32", []) for n in range(400)]
    kernel = KernelInfo("add", "kernels/add.py", "", ["fast"], "fast", "fast", cases, [], False, False)
    kinds = [KindInfo("latency", "latency.py", "unit", 2.0, 60.0, True, [KindCell("add", "fast", c.case, None) for c in cases])]
    expected = expand([Entry("latency", ("h200", "a10g"), frozenset())], Description([kernel], kinds), load_devices(), Filters())
    jobs = make_jobs(expected, kinds, "digest")
    assert sorted((j.device, len(j.cells)) for j in jobs) == [(d, n) for d in ("a10g", "h200") for n in (132, 134, 134)]
    assert all(j.expected_s <= 300 for j in jobs)


@pytest.mark.parametrize(
    ("longest_s", "parts"),
    [
        (1000.0, [["a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"]]),
        (10.0, [["a1", "b1", "c1"], ["a2", "b2", "c2"], ["a3", "b3", "c3"]]),
        (4.0, [["a1", "b1"], ["c1"], ["a2", "b2"], ["c2"], ["a3", "b3"], ["c3"]]),
    ],
    ids=["all", "whole cases", "less than a case"],
)
def test_the_variants_of_a_case_share_a_job_where_they_fit(longest_s, parts):
    kind = KindInfo("latency", "latency.py", "unit", 2.0, 60.0, True, [])
    expected = [Expected(Cell("add", variant, f"N={n}", "h200"), "latency") for variant in "abc" for n in (1, 2, 3)]
    jobs = make_jobs(expected, [kind], "digest", longest_s=longest_s)
    assert parts == sorted(([c.variant + c.case[2:] for c in j.cells] for j in jobs), key=lambda names: (names[0][1], names))


def test_a_jobs_id_depends_on_its_code():
    expected = expand([Entry("latency", ("h200",), frozenset())], description(), load_devices(), Filters())
    ids = [{j.job_id for j in make_jobs(expected, description().kinds, digest)} for digest in ("a", "a", "b")]
    assert ids[0] == ids[1] != ids[2]


def paired_jobs(launches, base_cells):
    kinds = [
        KindInfo(name, f"{name}.py", "unit", 1.0, 60.0, name == "latency", [KindCell("add", "fast", f"N={n}", None) for n in (1, 2)])
        for name in ("latency", "correctness")
    ]
    expected = [Expected(Cell("add", "fast", f"N={n}", "h200"), kind.name) for kind in kinds for n in (1, 2)]
    base = {(kind.name, Cell("add", "fast", f"N={n}", "h200")) for kind in kinds for n in base_cells}
    return {job.kind: job for job in make_jobs(expected, kinds, "digest", launches, base)}


def test_a_paired_job_launches_both_arms_in_abba_blocks():
    turns = paired_jobs(6, (1, 2))["latency"].turns
    assert "ABBA" * 3 == "".join("A" if t.arm == "base" else "B" for t in turns)
    assert [n // 4 for n in range(12)] == [t.block for t in turns]
    assert list(range(12)) == [t.position for t in turns]


def test_an_odd_number_of_launches_a_side_is_rounded_up_to_whole_blocks():
    assert [0] * 4 + [1] * 4 == [t.block for t in paired_jobs(3, (1, 2))["latency"].turns]


def test_a_kind_whose_launches_are_not_compared_runs_once_an_arm():
    assert [("base", 0, None), ("head", 1, None)] == [(t.arm, t.position, t.block) for t in paired_jobs(6, (1, 2))["correctness"].turns]


def test_a_cell_that_base_lacks_is_launched_for_head_alone():
    turns = paired_jobs(6, (1,))["latency"].turns
    assert {("base", ("N=1",)), ("head", ("N=1", "N=2"))} == {(t.arm, tuple(c.case for c in t.cells)) for t in turns}
    assert {"head"} == {t.arm for t in paired_jobs(6, ())["latency"].turns}
