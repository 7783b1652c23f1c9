"""The static kind: every launch of a variant, compiled for a GPU that is not there.

Toy kernels are compiled in processes of their own, because other tests have Triton interpret in theirs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOYS = Path(__file__).with_name("static_toys")
SHA256 = re.compile(r"[0-9a-f]{64}")
DEVICES = ("a10g", "h200", "b200", "mi300x")

Cell = dict[str, Any]


class Compiled:
    """What a process compiled: readings by (variant, device), in the order in which they were asked for, and checks."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.cells, self.checks = answer["cells"], answer["checks"]

    def all(self, variant: str, device: str = "h200", folder: Path = TOYS) -> list[Cell]:
        return self.cells[f"{folder} {variant} {device}"]

    def cell(self, variant: str, device: str = "h200", folder: Path = TOYS) -> Cell:
        return self.all(variant, device, folder)[0]


def compile_toys(cache: Path, cells: Sequence[tuple[Path, str, str]], checks: Sequence[str] = ()) -> Compiled:
    cache.mkdir(exist_ok=True)
    request = cache / "request.json"
    request.write_text(json.dumps({"cells": [[str(folder), variant, device] for folder, variant, device in cells], "checks": checks}))
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    env |= {
        "TRITON_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([sys.executable, str(TOYS / "driver.py"), str(request)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Compiled(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    cells = [(TOYS, variant, device) for variant in ("plain", "spilling", "clustered", "greedy") for device in DEVICES]
    on_one = ["tuned", "tuned_to_fit", "heuristic", "twice", "empty_grid", "misaligned", "overlapped", "described", "by_handle"]
    on_one += ["asks", "asks_aliasing", "wrong_name", "wrong_helper", "crashing", "launches_nothing", "plain", "tuned"]
    asked = [(TOYS, variant, device) for variant in ("asks", "asks_capability") for device in ("a10g", "mi300x")]
    cells += [(TOYS, variant, "h200") for variant in on_one] + asked
    return compile_toys(tmp_path_factory.mktemp("cache"), cells, ["vectors", "large", "restored", "refusals", "job"])


class TestReadings:
    def test_every_static_metric_has_one_reading(self, compiled: Compiled) -> None:
        expected = ["registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes", "kernel_launches", "compile_s"]
        assert expected == list(compiled.cell("plain")["values"])

    @pytest.mark.parametrize("device", DEVICES)
    def test_a_launch_has_hash_grid_and_configuration(self, compiled: Compiled, device: str) -> None:
        cell = compiled.cell("plain", device)
        stages = 2 if device == "mi300x" else 3
        assert (["4,1,1"], [f"num_warps=4,num_stages={stages},BLOCK=1024"]) == (cell["grid"], cell["config"])
        assert SHA256.fullmatch(cell["binary_hash"][0])
        assert SHA256.fullmatch(cell["launcher_digest"])

    def test_each_target_has_its_own_binary(self, compiled: Compiled) -> None:
        assert len({compiled.cell("plain", device)["binary_hash"][0] for device in DEVICES}) == len(DEVICES)

    @pytest.mark.parametrize("device", DEVICES)
    def test_a_spill_shows_in_bytes_and_stack(self, compiled: Compiled, device: str) -> None:
        values = compiled.cell("spilling", device)["values"]
        assert values["registers"] == 64
        assert values["spill_bytes"] > 0
        assert values["stack_bytes"] > 0
        assert compiled.cell("plain", device)["values"]["spill_bytes"] == 0

    def test_shared_memory_is_that_of_the_launch(self, compiled: Compiled) -> None:
        assert compiled.cell("tuned_to_fit")["values"]["shared_bytes"] == 32 * 32 * 4

    def test_launches_are_listed_in_order(self, compiled: Compiled) -> None:
        cell, add = compiled.cell("twice"), compiled.cell("plain")
        assert cell["values"]["kernel_launches"] == 2
        assert cell["config"] == ["num_warps=4,num_stages=3,BLOCK=1024", "num_warps=8,num_stages=3,BLOCK=4096"]
        assert cell["binary_hash"][0] == add["binary_hash"][0] != cell["binary_hash"][1]
        assert cell["values"]["code_bytes"] > add["values"]["code_bytes"]

    def test_an_empty_grid_is_no_launch(self, compiled: Compiled) -> None:
        assert compiled.cell("empty_grid")["values"]["kernel_launches"] == 1

    def test_what_was_compiled_in_this_process_costs_nothing_again(self, compiled: Compiled) -> None:
        first, again = compiled.all("plain")
        assert first["values"]["compile_s"] > 0
        assert again["values"] == first["values"] | {"compile_s": 0.0}
        assert again["binary_hash"] == first["binary_hash"]


class TestLaunchers:
    def test_heuristics_choose_constexprs(self, compiled: Compiled) -> None:
        cell = compiled.cell("heuristic")
        assert (["num_warps=4,num_stages=3,BLOCK=1024"], ["4,2,1"]) == (cell["config"], cell["grid"])

    def test_launch_options_that_the_binary_does_not_show_are_in_the_configuration(self, compiled: Compiled) -> None:
        cell = compiled.cell("overlapped")
        assert cell["binary_hash"] == compiled.cell("plain")["binary_hash"]
        assert cell["config"] == ["num_warps=4,num_stages=3,launch_pdl=True,BLOCK=1024"]

    def test_tensor_descriptors_are_arguments_like_others(self, compiled: Compiled) -> None:
        assert compiled.cell("described")["grid"] == ["4,4,1"]

    def test_a_launch_through_a_compiled_kernel_counts_and_knows_its_registers(self, compiled: Compiled) -> None:
        registers = compiled.cell("plain")["values"]["registers"]
        assert compiled.cell("by_handle")["grid"] == [f"{registers:.0f},1,1"]

    @pytest.mark.parametrize(("device", "multiprocessors"), [("a10g", 80), ("h200", 132), ("mi300x", 304)])
    def test_harness_torch_and_triton_give_one_answer_about_the_device(self, compiled: Compiled, device: str, multiprocessors: int) -> None:
        assert compiled.cell("asks", device)["grid"] == [",".join([str(multiprocessors)] * 3)]

    @pytest.mark.parametrize(("device", "grid"), [("a10g", "8,6,1"), ("mi300x", "9,4,2")])
    def test_torch_knows_the_architecture_and_the_vendor(self, compiled: Compiled, device: str, grid: str) -> None:
        assert compiled.cell("asks_capability", device)["grid"] == [grid]

    def test_storages_have_addresses_of_their_own_and_views_their_storage_s(self, compiled: Compiled) -> None:
        assert compiled.cell("asks_aliasing")["grid"] == ["1,2,1"]

    def test_misaligned_pointers_are_compiled_without_vector_loads(self, compiled: Compiled) -> None:
        assert compiled.checks["vectors"]["plain"] > 0
        assert compiled.checks["vectors"]["misaligned"] == 0

    def test_amd_buffers_have_32_bit_offsets_up_to_2_gib(self, compiled: Compiled) -> None:
        assert compiled.checks["large"] == {str(2**31 - 4): True, str(2**31): False}

    def test_nothing_stays_changed(self, compiled: Compiled) -> None:
        assert compiled.checks["restored"] == []


class TestAutotuning:
    def test_every_configuration_is_compiled_as_one_launch(self, compiled: Compiled) -> None:
        cell = compiled.cell("tuned")
        assert cell["values"]["kernel_launches"] == 1
        assert cell["config"] == ["num_warps=2,num_stages=3,BLOCK=256 | num_warps=4,num_stages=3,BLOCK=1024"]
        assert cell["grid"] == ["16,1,1 | 4,1,1"]

    def test_its_hash_stands_for_the_set(self, compiled: Compiled) -> None:
        assert compiled.cell("tuned")["binary_hash"] != compiled.cell("plain")["binary_hash"]

    def test_an_earlier_choice_leaves_no_configuration_out(self, compiled: Compiled) -> None:
        first, again = compiled.all("tuned")
        assert again["config"] == first["config"]
        assert again["binary_hash"] == first["binary_hash"]

    def test_a_configuration_that_does_not_fit_is_dropped(self, compiled: Compiled) -> None:
        cell = compiled.cell("tuned_to_fit")
        assert (["num_warps=4,num_stages=3,BLOCK=32"], "ok") == (cell["config"], cell["status"])


class TestFailures:
    @pytest.mark.parametrize(("device", "shared"), [("a10g", 101_376), ("h200", 232_448), ("b200", 232_448), ("mi300x", 65_536)])
    def test_too_much_shared_memory(self, compiled: Compiled, device: str, shared: int) -> None:
        cell = compiled.cell("greedy", device)
        assert cell["status"] == "build_failed"
        assert re.fullmatch(rf"transpose: out of shared memory: needs \d+, the target has {shared}", cell["reason"])

    def test_an_error_in_a_kernel_is_named_with_its_line(self, compiled: Compiled) -> None:
        cell = compiled.cell("wrong_name")
        line = next(n for n, text in enumerate((TOYS / "toys.py").read_text().splitlines(), start=1) if "no_such_name" in text)
        assert cell["status"] == "build_failed"
        assert cell["values"] == {"null": None}
        assert cell["reason"].startswith(f"misspelt: toys.py:{line} `tl.store(p_x + o, no_such_name)")
        assert "no_such_name is not defined" in cell["reason"]

    def test_an_error_in_a_helper_is_named_with_its_text(self, compiled: Compiled) -> None:
        cell = compiled.cell("wrong_helper")
        assert cell["reason"] == 'calls_refuse: `tl.static_assert(False, "this helper refuses")`: this helper refuses'

    @pytest.mark.parametrize(("device", "status"), [("a10g", "build_failed"), ("h200", "ok"), ("mi300x", "build_failed")])
    def test_an_option_that_the_target_lacks(self, compiled: Compiled, device: str, status: str) -> None:
        cell = compiled.cell("clustered", device)
        assert cell["status"] == status
        assert status == "ok" or "num_ctas > 1" in cell["reason"]

    def test_a_variant_that_launches_nothing(self, compiled: Compiled) -> None:
        cell = compiled.cell("launches_nothing")
        assert ("build_failed", "launched no Triton kernel") == (cell["status"], cell["reason"])

    def test_a_launcher_s_own_exception_is_not_ours(self, compiled: Compiled) -> None:
        assert compiled.cell("crashing") == {"raised": "KeyError"}

    @pytest.mark.parametrize(
        ("what", "words"),
        [
            ("interpreter device", "no triton_target"),
            ("real tensors", "its tensors are on cpu"),
            ("interpreting", "TRITON_INTERPRET is set"),
            ("no seam", "JITFunction._do_compile"),
        ],
    )
    def test_what_cannot_be_asked(self, compiled: Compiled, what: str, words: str) -> None:
        assert words in compiled.checks["refusals"][what]


class TestJob:
    def test_it_runs_on_any_host_and_asks_for_triton_variants(self, compiled: Compiled) -> None:
        job = compiled.checks["job"]
        assert ("host", {"plain": True, "eager": False}) == (job["on"], job["applies"])

    def test_it_records_a_good_cell(self, compiled: Compiled) -> None:
        assert compiled.checks["job"]["ends"]["twice"] == [["ok"] * 7, None]

    def test_it_records_a_bad_cell_and_says_why(self, compiled: Compiled) -> None:
        stored, failure = compiled.checks["job"]["ends"]["greedy"]
        assert stored == ["build_failed"]
        assert failure.startswith("toy/greedy/N=4096,dtype=fp32@h200: build_failed: transpose: out of shared memory")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return compile_toys(tmp_path_factory.mktemp("cache"), [(TOYS, "plain", "h200")], ["specialisation", "resources", "unit"])


@pytest.mark.slow
class TestAgainstOthers:
    def test_meta_tensors_specialise_as_real_ones(self, checked: Compiled) -> None:
        found = checked.checks["specialisation"]
        assert {name for name, (meta, real) in found.items() if meta != real} == set()
        assert len({json.dumps(meta) for meta, _ in found.values()}) > 12

    def test_registers_and_stack_are_those_that_cuobjdump_reads(self, checked: Compiled) -> None:
        found = checked.checks["resources"]
        assert {name: theirs for name, (_, theirs) in found.items()} == {name: ours for name, (ours, _) in found.items()}
        assert len(found) == 6

    @pytest.mark.gpu
    def test_a_unit_launches_the_binary_that_was_compiled_for_it(self, checked: Compiled) -> None:
        found = checked.checks["unit"]
        if found is None:
            pytest.skip("no GPU")
        assert {variant: launched for variant, (_, launched) in found.items()} == {variant: ours for variant, (ours, _) in found.items()}


EDITS = {
    "moved": ("toys.py", "", ""),
    "commented": ("toys.py", "@triton.jit\ndef add", "# one line more above every kernel\n\n\n@triton.jit\ndef add"),
    "kernel": ("toys.py", "tl.load(p_x + o, mask=mask) +", "tl.load(p_x + o, mask=mask) -"),
    "launcher": ("toys.py", "triton.cdiv(x.numel(), 1024)", "triton.cdiv(x.numel(), 1024) + 0"),
    "constant": ("toy_constants.py", "3.0", "4.0"),
}


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cell]:
    """`plain` and `twice` by edit, the last compiled by a second process that finds the first one's cache."""
    root = tmp_path_factory.mktemp("edits")
    for name, (file, old, new) in {"first": ("toys.py", "", ""), **EDITS}.items():
        shutil.copytree(TOYS, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        text = (root / name / file).read_text()
        assert old in text
        (root / name / file).write_text(text.replace(old, new) if old else text)
    cells = [(root / "first", variant, device) for variant in ("plain", "twice") for device in ("h200", "mi300x")]
    found = compile_toys(root / "cache", cells).cells
    cells = [(root / name, variant, device) for name in EDITS for variant in ("plain", "twice") for device in ("h200", "mi300x")]
    found |= compile_toys(root / "cache", cells).cells
    return {key.removeprefix(f"{root}/"): cell for key, (cell,) in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["h200", "mi300x"])
class TestHashes:
    def columns(self, edited: dict[str, Cell], edit: str, device: str, variant: str = "twice") -> tuple[Any, ...]:
        first, now = (edited[f"{name} {variant} {device}"] for name in ("first", edit))
        names = ("binary_hash", "grid", "config", "launcher_digest")
        return tuple(name for name in names if first[name] != now[name])

    def test_the_folder_is_in_no_hash(self, edited: dict[str, Cell], device: str) -> None:
        assert self.columns(edited, "moved", device) == ()
        assert edited[f"moved twice {device}"]["values"]["compile_s"] == 0

    def test_a_comment_above_a_kernel_changes_nothing_though_it_is_compiled_anew(self, edited: dict[str, Cell], device: str) -> None:
        assert self.columns(edited, "commented", device) == ()
        assert edited[f"commented twice {device}"]["values"]["compile_s"] > 0

    def test_another_kernel_has_another_hash(self, edited: dict[str, Cell], device: str) -> None:
        assert self.columns(edited, "kernel", device, "plain") == ("binary_hash", "launcher_digest")

    def test_another_launcher_has_another_digest(self, edited: dict[str, Cell], device: str) -> None:
        assert self.columns(edited, "launcher", device, "plain") == ("launcher_digest",)

    def test_a_constant_of_another_module_is_not_taken_from_a_stale_cache(self, edited: dict[str, Cell], device: str) -> None:
        assert self.columns(edited, "constant", device) == ("binary_hash", "launcher_digest")
        first, now = (edited[f"{name} twice {device}"]["binary_hash"] for name in ("first", "constant"))
        assert (first[0] == now[0], first[1] == now[1]) == (True, False)
