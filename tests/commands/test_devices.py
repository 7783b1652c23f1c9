"""`harness devices`: what a person and a program read of the device table."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from harness.commands.devices import command, device_table
from harness.devices.table import load_devices

DEVICES = load_devices()


def test_json_is_one_object_a_device() -> None:
    result = CliRunner().invoke(command, ["--format", "json"])
    found = {row["device"]: row for row in json.loads(result.stdout)}
    assert list(DEVICES) == list(found)
    assert found["mi300x"] == {
        "device": "mi300x",
        "vendor": "amd",
        "model": "AMD Instinct MI300X",
        "triton_target": "hip gfx942",
        "peak_gbps": 5300,
        "last_level_cache_bytes": 268435456,
        "groups": ["rocm", "fleet"],
    }
    assert (found["cpu"]["triton_target"], found["cpu"]["groups"]) == (None, [])


def test_text_is_a_table() -> None:
    stream = io.StringIO()
    Console(file=stream, width=160).print(device_table([DEVICES[name] for name in ("b200", "mi250x", "cpu")]))
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [
        "device  model                Triton target  memory, GiB  peak GB/s  cache, MiB  SMs or CUs  groups",
        "b200    NVIDIA B200          cuda 100               192       7700       126.5         148  nvidia, fleet",
        "mi250x  AMD Instinct MI250X  hip gfx90a              64     1638.4           8         110  rocm",
        "cpu     Triton interpreter   -                       16       25.6          32           4  -",
    ]


def test_text_lists_every_device_uncut_when_piped() -> None:
    lines = CliRunner().invoke(command, []).stdout.splitlines()
    assert list(DEVICES) == [line.split()[0] for line in lines[1:]]
    assert all(device.model in line for device, line in zip(DEVICES.values(), lines[1:], strict=True))


def test_an_unknown_format_is_a_usage_error() -> None:
    assert CliRunner().invoke(command, ["--format", "xml"]).exit_code == 2


@pytest.mark.parametrize("option", ["Example:", "harness devices --format json", "--format [text|json]"])
def test_help_has_an_example_and_the_options(option: str) -> None:
    assert option in CliRunner().invoke(command, ["--help"]).stdout


def test_finding_the_verb_imports_only_click() -> None:
    code = "import sys, harness.commands.devices; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set() == {"torch", "triton", "rich", "numpy", "tomllib"} & set(done.stdout.split())
