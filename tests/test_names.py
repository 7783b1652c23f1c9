"""No GPU is named outside devices.toml, and no kernel in the engine: each is one file to add, nothing else to touch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from harness.devices.table import DEFAULT_PATH, Vendor, load_devices

ROOT = Path(__file__).parent.parent
SUFFIXES = {".py", ".toml", ".j2"}


def gpu_names() -> list[str]:
    """Names and models of every GPU; the interpreter's are words that everyone may use."""
    return [name for device in load_devices().values() if device.vendor is not Vendor.ANY for name in (device.name, device.model)]


def kernel_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and path != DEFAULT_PATH)


def mentions(names: Iterable[str], paths: Iterable[Path]) -> list[str]:
    """`file:line: name` for every name that stands as a word; an underscore ends a word, so `x1_grid` names x1."""
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or r"(?!)"
    pattern = re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", re.IGNORECASE)
    return [
        f"{path}:{number}: {match.group()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for match in pattern.finditer(line)
    ]


def test_no_gpu_is_named_outside_the_table() -> None:
    assert mentions(gpu_names(), files(ROOT / "harness", ROOT / "kernels", ROOT / "jobs")) == []


def test_no_kernel_is_named_in_the_engine() -> None:
    assert mentions(kernel_names(ROOT / "kernels"), files(ROOT / "harness")) == []


class TestTheScan:
    @pytest.mark.parametrize(
        ("line", "found"),
        [
            ('if device == "h200":', "h200"),
            ("# fast on H200", "H200"),
            ("h200_blocks = 132", "h200"),
            ("the NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 5090"),
            ("tuned@mi300x", "mi300x"),
        ],
    )
    def test_finds_a_planted_gpu(self, tmp_path: Path, line: str, found: str) -> None:
        for name in ("deep/module.py", "matrix.toml", "report.md.j2"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"\n{line}\n")
            assert [f"{path}:2: {found}"] == mentions(gpu_names(), [path])
            assert path in list(files(tmp_path))

    @pytest.mark.parametrize("line", ["h2000", "sh200", "cpu", "al4", "sm_90", "gfx942"])
    def test_leaves_other_words_alone(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "module.py"
        path.write_text(line)
        assert mentions(gpu_names(), [path]) == []

    def test_finds_a_planted_kernel(self, tmp_path: Path) -> None:
        kernels = tmp_path / "kernels"
        kernels.mkdir()
        for name in ("swirl_norm", "_lib"):
            (kernels / f"{name}.py").touch()
        engine = tmp_path / "engine.py"
        engine.write_text('SLOW = {"swirl_norm"}\nswirl_normal = _lib\n')
        assert kernel_names(kernels) == ["swirl_norm"]
        assert [f"{engine}:1: swirl_norm"] == mentions(kernel_names(kernels), [engine])

    def test_skips_the_table_alone(self) -> None:
        assert DEFAULT_PATH not in list(files(ROOT / "harness"))
        assert ROOT / "harness" / "devices" / "table.py" in list(files(ROOT / "harness"))

    def test_nothing_to_look_for_is_nothing_found(self, tmp_path: Path) -> None:
        path = tmp_path / "module.py"
        path.write_text("anything")
        assert mentions([], [path]) == []
