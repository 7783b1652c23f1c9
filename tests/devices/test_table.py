"""The device table: what it says of the GPUs we know, and how it refuses a bad row."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.devices.table import (
    DEFAULT_PATH,
    FIGURES,
    OPTIONAL,
    TEXTS,
    Device,
    DeviceTableError,
    Vendor,
    identify,
    load_devices,
    resolve_devices,
)
from harness.errors import HarnessError, UnknownNameError

DEVICES = load_devices()
GPUS = [device for device in DEVICES.values() if device.vendor is not Vendor.ANY]
KB, MB, GB = 2**10, 2**20, 2**30

NVIDIA = ["a10g", "a100", "b200", "gb200", "h100", "h200", "l4", "l40s", "rtx5090"]
ROCM = ["mi250x", "mi300x", "mi325x", "mi355x"]


class TestTheTable:
    def test_rows_stand_in_file_order(self) -> None:
        assert [*NVIDIA, *ROCM, "cpu"] == list(DEVICES)

    @pytest.mark.parametrize(
        ("name", "model", "target", "memory", "gbps", "cache", "multiprocessors", "shared"),
        [
            ("a10g", "NVIDIA A10G", ("cuda", 86, 32), 24 * GB, 600, 6 * MB, 80, 99 * KB),
            ("a100", "NVIDIA A100-SXM4-80GB", ("cuda", 80, 32), 80 * GB, 2039, 40 * MB, 108, 163 * KB),
            ("b200", "NVIDIA B200", ("cuda", 100, 32), 192 * GB, 7700, 126.5 * MB, 148, 227 * KB),
            ("gb200", "NVIDIA GB200", ("cuda", 100, 32), 186 * GB, 8000, 126.5 * MB, 152, 227 * KB),
            ("h100", "NVIDIA H100 80GB HBM3", ("cuda", 90, 32), 80 * GB, 3350, 50 * MB, 132, 227 * KB),
            ("h200", "NVIDIA H200", ("cuda", 90, 32), 141 * GB, 4800, 60 * MB, 132, 227 * KB),
            ("l4", "NVIDIA L4", ("cuda", 89, 32), 24 * GB, 300, 48 * MB, 58, 99 * KB),
            ("l40s", "NVIDIA L40S", ("cuda", 89, 32), 48 * GB, 864, 96 * MB, 142, 99 * KB),
            ("rtx5090", "NVIDIA GeForce RTX 5090", ("cuda", 120, 32), 32 * GB, 1792, 96 * MB, 170, 99 * KB),
            ("mi250x", "AMD Instinct MI250X", ("hip", "gfx90a", 64), 64 * GB, 1638.4, 8 * MB, 110, 64 * KB),
            ("mi300x", "AMD Instinct MI300X", ("hip", "gfx942", 64), 192 * GB, 5300, 256 * MB, 304, 64 * KB),
            ("mi325x", "AMD Instinct MI325X", ("hip", "gfx942", 64), 256 * GB, 6000, 256 * MB, 304, 64 * KB),
            ("mi355x", "AMD Instinct MI355X", ("hip", "gfx950", 64), 288 * GB, 8000, 256 * MB, 256, 160 * KB),
        ],
        ids=[*NVIDIA, *ROCM],
    )
    def test_a_gpu_has_its_vendors_figures(
        self,
        name: str,
        model: str,
        target: tuple[str, int | str, int],
        memory: int,
        gbps: float,
        cache: float,
        multiprocessors: int,
        shared: int,
    ) -> None:
        device = DEVICES[name]
        found = (
            device.model,
            device.gpu_target,
            device.memory_bytes,
            device.peak_gbps,
            device.last_level_cache_bytes,
            device.properties.multiprocessors,
            device.properties.shared_bytes_per_block,
        )
        assert (model, target, memory, gbps, cache, multiprocessors, shared) == found

    def test_the_interpreter_has_no_target_and_no_group(self) -> None:
        cpu = DEVICES["cpu"]
        assert (cpu.triton_target, cpu.gpu_target, cpu.groups, cpu.properties.backend) == (None, None, (), "cpu")

    def test_a_launcher_is_told_the_cache_in_front_of_the_memory_not_the_reported_l2(self) -> None:
        assert DEVICES["mi300x"].properties.last_level_cache_bytes == 256 * MB

    @pytest.mark.parametrize(("backend", "nodes"), [("cuda", 2000), ("hip", 512)])
    def test_graphs_stay_shorter_on_hip(self, backend: str, nodes: int) -> None:
        assert {nodes} == {device.max_graph_nodes for device in GPUS if device.properties.backend == backend}

    def test_rows_of_one_architecture_agree_on_what_the_architecture_decides(self) -> None:
        def limits(arch: str) -> set[tuple[int, ...]]:
            return {
                (
                    device.properties.warp_size,
                    device.properties.shared_bytes_per_block,
                    device.shared_bytes_per_multiprocessor,
                    device.registers_per_multiprocessor,
                    device.max_warps_per_multiprocessor,
                    device.max_blocks_per_multiprocessor,
                )
                for device in GPUS
                if device.arch == arch
            }

        assert {1} == {len(limits(device.arch)) for device in GPUS}

    def test_no_two_rows_claim_the_same_unit(self) -> None:
        claims = [(model, d.properties.multiprocessors) for d in GPUS for model in (d.model, *d.also_reported_as)]
        assert sorted(set(claims)) == sorted(claims)

    def test_groups(self) -> None:
        members = {group: [name for name, device in DEVICES.items() if group in device.groups] for group in ("nvidia", "rocm", "fleet")}
        assert members == {"nvidia": NVIDIA, "rocm": ROCM, "fleet": ["a10g", "b200", "h200", "mi300x"]}

    def test_is_read_once_and_cannot_be_changed(self) -> None:
        assert load_devices() is DEVICES
        with pytest.raises(TypeError):
            DEVICES["cpu"] = DEVICES["h200"]  # type: ignore[index]
        with pytest.raises(dataclasses.FrozenInstanceError):
            DEVICES["cpu"].peak_gbps = 1.0  # type: ignore[misc]


class TestTheGuide:
    TEXT = (Path(__file__).parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize("field", [*TEXTS, *OPTIONAL, *FIGURES])
    def test_says_what_a_field_means(self, field: str) -> None:
        assert f"\n| `{field}` |" in self.TEXT

    def test_shows_a_row_that_the_reader_takes(self, tmp_path: Path) -> None:
        (row,) = re.findall(r"```toml\n(.*?)```", self.TEXT, re.DOTALL)
        path = tmp_path / "devices.toml"
        path.write_text(DEFAULT_PATH.read_text(encoding="utf-8") + row)
        assert [*DEVICES, "x1"] == list(load_devices(path))
        assert [name for name in resolve_devices(["nvidia"], load_devices(path)) if name not in DEVICES] == ["x1"]

    @pytest.mark.parametrize("device", GPUS, ids=lambda device: device.name)
    def test_names_every_target_that_is_proved_by_compiling(self, device: Device) -> None:
        assert re.search(rf"\b{str(device.triton_target).split()[1]}\b", self.TEXT.rpartition("proved as far as compiling")[2])


class TestSources:
    @pytest.mark.parametrize("name", list(DEVICES))
    def test_every_figure_has_one(self, name: str) -> None:
        assert list(FIGURES) == list(DEVICES[name].sources)
        assert all(len(source) > 10 for source in DEVICES[name].sources.values())

    def test_every_document_is_cited(self) -> None:
        table = tomllib.loads(DEFAULT_PATH.read_text(encoding="utf-8"))
        cited = {row[figure]["source"] for row in table["devices"].values() for figure in FIGURES}
        assert set(table["documents"]) == cited

    @pytest.mark.parametrize(
        ("name", "figure", "other"),
        [
            ("b200", "peak_gbps", "8000"),
            ("gb200", "peak_gbps", "7700"),
            ("mi300x", "last_level_cache_bytes", "4 MB"),
            ("l40s", "last_level_cache_bytes", "48 MB"),
        ],
    )
    def test_where_two_differ_the_row_says_so(self, name: str, figure: str, other: str) -> None:
        assert other in DEVICES[name].sources[figure]


COMPILE = """
import json, sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def double(p_x, p_y, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_y + o, tl.load(p_x + o) * 2)

def size(target):
    source = ASTSource(double, {"p_x": "*fp32", "p_y": "*fp32", "BLOCK": "constexpr"}, {(2,): 128})
    asm = triton.compile(source, target=GPUTarget(*target)).asm
    return len(asm["cubin" if target[0] == "cuda" else "hsaco"])

print(json.dumps([size(target) for target in json.loads(sys.argv[1])]))
"""


def test_triton_compiles_a_kernel_for_every_target(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    script = tmp_path / "compile_double.py"
    script.write_text(COMPILE)
    targets = sorted({device.gpu_target for device in GPUS if device.gpu_target}, key=str)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | {
        "TRITON_CACHE_DIR": str(tmp_path / "cache")
    }
    done = subprocess.run([sys.executable, script, json.dumps(targets)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [True] * len(targets) == [size > 0 for size in json.loads(done.stdout)]


def test_reading_the_table_imports_nothing_heavy() -> None:
    code = "import sys, harness.devices.table as table; table.load_devices(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set() == {"torch", "triton", "rich", "click", "numpy"} & set(done.stdout.split())


class TestResolve:
    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            ([], []),
            (["h200"], ["h200"]),
            (["mi300x", "a10g"], ["a10g", "mi300x"]),
            (["h200", "h200", "fleet"], ["a10g", "b200", "h200", "mi300x"]),
            (["rocm"], ROCM),
            (["nvidia", "cpu"], [*NVIDIA, "cpu"]),
            (["all"], [*NVIDIA, *ROCM, "cpu"]),
            (["all", "fleet"], [*NVIDIA, *ROCM, "cpu"]),
        ],
        ids=["nothing", "one", "file-order", "no-duplicates", "group", "group-and-device", "all", "all-and-group"],
    )
    def test_expands_to_devices_in_file_order(self, names: list[str], expected: list[str]) -> None:
        assert expected == resolve_devices(names, DEVICES)

    def test_an_unknown_name_is_answered_with_the_closest(self) -> None:
        with pytest.raises(UnknownNameError) as error:
            resolve_devices(["h200", "mi300"], DEVICES)
        assert (error.value.asked, error.value.do) == ("device 'mi300'", "use 'mi300x'")
        assert "fleet" in error.value.found


class TestIdentify:
    @pytest.mark.parametrize(
        ("model", "multiprocessors", "expected"),
        [
            ("NVIDIA H200", 132, "h200"),
            ("AMD Instinct MI300X VF", 304, "mi300x"),
            ("AMD Instinct MI250X/MI250", 110, "mi250x"),
            ("AMD Instinct MI250X/MI250", 104, None),
            ("AMD Instinct MI300X", 38, None),
            ("NVIDIA H200 NVL", 132, None),
        ],
        ids=["model", "another-name", "shared-name", "the-other-product-of-that-name", "a-partition", "a-longer-name"],
    )
    def test_by_name_and_multiprocessors(self, model: str, multiprocessors: int, expected: str | None) -> None:
        found = identify(model, multiprocessors, DEVICES)
        assert expected == (found.name if found else None)


FIGURE = '{ value = 64, source = "sheet" }'
ROW = {
    "vendor": '"nvidia"',
    "model": '"Vendor X1"',
    "arch": '"sm_90"',
    "triton_target": '"cuda 90"',
    **dict.fromkeys(FIGURES, FIGURE),
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a table of one row `x1`; keyword arguments change its fields, None removes one."""

    def write_table(groups: str = 'pair = ["x1"]', tail: str = "", row: str = "x1", **changes: str | None) -> Path:
        fields = {field: value for field, value in (ROW | changes).items() if value is not None}
        lines = ["[groups]", groups, "[documents]", 'sheet = "X1 datasheet, https://x.example"', f"[devices.{row}]"]
        path = tmp_path / "devices.toml"
        path.write_text("\n".join([*lines, *(f"{field} = {value}" for field, value in fields.items()), tail]))
        return path

    return write_table


class TestReading:
    def test_another_file(self, write: Write) -> None:
        device = load_devices(write(peak_gbps='{ value = 1.5, source = "sheet", note = "half" }', also_reported_as='["X1 VF"]'))["x1"]
        assert (device.name, device.vendor, device.also_reported_as, device.groups) == ("x1", Vendor.NVIDIA, ("X1 VF",), ("pair",))
        assert (device.peak_gbps, device.sources["peak_gbps"]) == (1.5, "X1 datasheet, https://x.example (half)")

    def test_a_source_may_be_an_address_so_that_a_gpu_is_one_table(self, write: Write) -> None:
        device = load_devices(write(warp_size='{ value = 32, source = "Guide, https://g.example" }'))["x1"]
        assert device.sources["warp_size"] == "Guide, https://g.example"

    @pytest.mark.parametrize("field", [*FIGURES, "vendor", "model", "arch", "triton_target"])
    def test_a_missing_field_is_named(self, write: Write, field: str) -> None:
        path = write(**{field: None})
        with pytest.raises(DeviceTableError) as error:
            load_devices(path)
        assert f"read row x1, field {field}, of {path}" == error.value.asked
        assert error.value.found == "no such field"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("colour", '"green"'),
            ("vendor", '"intel"'),
            ("model", "3"),
            ("model", '" "'),
            ("arch", '"gfx942"'),
            ("triton_target", '"cuda 86"'),
            ("triton_target", '"hip gfx942"'),
            ("also_reported_as", '"X1 VF"'),
            ("also_reported_as", "[1]"),
            ("multiprocessors", "132"),
            ("multiprocessors", "{ value = 132 }"),
            ("multiprocessors", '{ value = 132, source = "sheet", link = "x" }'),
            ("multiprocessors", '{ value = 132, source = "shet" }'),
            ("multiprocessors", "{ value = 132, source = 7 }"),
            ("multiprocessors", '{ value = 132, source = "sheet", note = 7 }'),
            ("multiprocessors", '{ value = "132", source = "sheet" }'),
            ("multiprocessors", '{ value = 132.0, source = "sheet" }'),
            ("multiprocessors", '{ value = true, source = "sheet" }'),
            ("multiprocessors", '{ value = 0, source = "sheet" }'),
            ("peak_gbps", '{ value = -1.0, source = "sheet" }'),
            ("peak_gbps", '{ value = nan, source = "sheet" }'),
            ("peak_gbps", '{ value = inf, source = "sheet" }'),
            ("usable_memory_bytes", '{ value = 65, source = "sheet" }'),
            ("shared_bytes_per_block", '{ value = 65, source = "sheet" }'),
        ],
        ids=lambda value: value.replace(" ", "").replace('"', ""),
    )
    def test_a_bad_field_is_named(self, write: Write, field: str, value: str) -> None:
        path = write(**{field: value})
        with pytest.raises(DeviceTableError) as error:
            load_devices(path)
        assert f"read row x1, field {field}, of {path}" == error.value.asked

    def test_the_interpreter_may_have_no_target(self, write: Write) -> None:
        with pytest.raises(DeviceTableError, match="field triton_target"):
            load_devices(write(vendor='"any"', arch='"cpu"'))

    @pytest.mark.parametrize(
        ("groups", "found"),
        [
            ('pair = ["x1", "x2"]', "member 'x2' is no device"),
            ("pair = [[]]", "member [] is no device"),
            ("pair = []", "[]"),
            ('pair = { vendor = "intel" }', "{'vendor': 'intel'}"),
            ("pair = { vendor = [] }", "{'vendor': []}"),
            ('pair = "x1"', "'x1'"),
            ('all = ["x1"]', "the name is reserved, a device's, or no word"),
            ('x1 = ["x1"]', "the name is reserved, a device's, or no word"),
        ],
        ids=["unknown-member", "member-no-name", "empty", "unknown-vendor", "vendor-no-name", "no-list", "all", "a-device"],
    )
    def test_a_bad_group_is_named(self, write: Write, groups: str, found: str) -> None:
        path = write(groups=groups)
        with pytest.raises(DeviceTableError) as error:
            load_devices(path)
        assert found == error.value.found
        assert f"of {path}" in error.value.asked
        assert groups.split()[0] in error.value.asked

    @pytest.mark.parametrize("row", ["all", "X1", '"x/1"'])
    def test_a_name_that_cannot_stand_in_a_cell_is_refused(self, write: Write, row: str) -> None:
        with pytest.raises(DeviceTableError, match="rename it"):
            load_devices(write(groups="", row=row))

    def test_an_unknown_table_is_refused(self, write: Write) -> None:
        with pytest.raises(DeviceTableError, match="unknown table 'fleet'"):
            load_devices(write(tail="[fleet]"))

    def test_a_missing_table_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "devices.toml"
        path.write_text("[devices]\n[groups]\n")
        with pytest.raises(DeviceTableError, match=r"no table \[documents\]"):
            load_devices(path)

    def test_bad_toml_says_where(self, write: Write) -> None:
        path = write(tail="not toml")
        with pytest.raises(DeviceTableError) as error:
            load_devices(path)
        assert (f"read the device table {path}", True) == (error.value.asked, "line" in error.value.found)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DeviceTableError, match=r"nowhere\.toml"):
            load_devices(tmp_path / "nowhere.toml")

    def test_is_an_error_of_the_user(self) -> None:
        assert issubclass(DeviceTableError, HarnessError)
        assert DeviceTableError.exit_code == 2
