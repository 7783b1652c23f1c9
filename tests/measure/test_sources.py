"""The digest of what decides how a variant launches."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from harness.measure.sources import launcher_digest

FILES = {
    "scale.py": """
import functools
import json
from digest_kernels._lib import grids
from harness import Case, Kernel, Tolerance, Traffic


def launch(x, factor=2):
    from digest_kernels import late

    return grids.size(x) * factor * late.VALUE


KERNEL = Kernel(
    variants={"plain": launch, "partial": functools.partial(launch, factor=3)},
    default="plain", baseline="plain", axes=("N",), cases=[Case(N=8, dtype="fp32", tags="smoke")],
    make_inputs=lambda case, generator: {"x": 1}, reference=lambda x: {"y": x}, outputs=("y",),
    tolerance={"fp32": Tolerance(1e-6, "one rounding")}, traffic=lambda case: Traffic(0, 0), flops=lambda case: 0, name="scale",
)
""",
    "_lib/grids.py": "from .sizes import SIZE\n\n\ndef size(x):\n    return SIZE\n",
    "_lib/sizes.py": "SIZE = 4\n",
    "late.py": "VALUE = 1\n",
    "other.py": "VALUE = 1\n",
}


NO_MORE: Mapping[str, str] = {}


@pytest.fixture
def digest(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Digest of the kernel once `file` has had `old` replaced by `new`, and with more files, in a folder of its own."""
    path, count = list(sys.path), 0

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "digest_kernels"]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def compute(file: str = "scale.py", old: str = "", new: str = "", variant: str = "plain", more: Mapping[str, str] = NO_MORE) -> str:
        nonlocal count
        count += 1
        root = tmp_path / str(count)
        for name, text in {**FILES, **more}.items():
            target = root / "digest_kernels" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            assert name != file or old in text
            target.write_text(text.replace(old, new) if name == file and old else text)
        forget()
        sys.path[:] = [str(root), *path]
        return launcher_digest(importlib.import_module("digest_kernels.scale").KERNEL, variant)

    yield compute
    sys.path[:] = path
    forget()


def test_equal_files_in_another_folder_have_the_same_digest(digest: Callable[..., str]) -> None:
    assert digest() == digest()


def test_comments_and_layout_do_not_count(digest: Callable[..., str]) -> None:
    assert digest("scale.py", "def launch(x, factor=2):\n", "\n\n# why\ndef launch(\n    x,\n    factor=2,\n):\n") == digest()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("scale.py", "* factor", "+ factor", id="launcher"),
        pytest.param("scale.py", '{"x": 1}', '{"x": 2}', id="make_inputs"),
        pytest.param("_lib/grids.py", "return SIZE", "return SIZE + 1", id="imported"),
        pytest.param("_lib/sizes.py", "4", "5", id="imported by what is imported, relatively"),
        pytest.param("late.py", "1", "2", id="imported when launched"),
    ],
)
def test_what_a_launch_depends_on_counts(digest: Callable[..., str], file: str, old: str, new: str) -> None:
    assert digest(file, old, new) != digest()


def test_the_traffic_of_a_variants_own_counts(digest: Callable[..., str]) -> None:
    own = (
        FILES["scale.py"]
        .replace('"partial": functools.partial(launch, factor=3)', '"partial": Variant(launch, traffic=own.traffic)')
        .replace("Tolerance, Traffic", "Tolerance, Traffic, Variant")
        .replace("import functools", "from digest_kernels import own")
    )
    files = {"own.py": "def traffic(case):\n    return 0\n"}
    before, after = (
        digest("scale.py", FILES["scale.py"], own, variant="partial", more={"own.py": files["own.py"].replace("0", value)})
        for value in ("0", "1")
    )
    assert before != after


def test_the_file_that_declares_the_kernel_counts_where_all_its_functions_come_from_elsewhere(digest: Callable[..., str]) -> None:
    family = """
import functools
from digest_kernels import late
from harness import Case, Kernel, Tolerance, Traffic


KERNEL = Kernel(
    variants={"plain": functools.partial(late.launch, repeat=1)}, default="plain", baseline="plain", axes=("N",),
    cases=[Case(N=8, dtype="fp32", tags="smoke")], make_inputs=late.make_inputs, reference=late.reference, outputs=("y",),
    tolerance={"fp32": Tolerance(1e-6, "one rounding")}, traffic=late.traffic, flops=late.flops, name="scale",
)
"""
    functions = "\n".join(
        f"def {name}(*given, **named):\n    return 0\n" for name in ("launch", "make_inputs", "reference", "traffic", "flops")
    )
    before, after = (
        digest("scale.py", FILES["scale.py"], family.replace("repeat=1", f"repeat={n}"), more={"late.py": functions}) for n in (1, 1000)
    )
    assert before != after


def test_a_module_without_a_file_that_holds_the_kernel_too_does_not_count(
    digest: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest()
    prompt = types.ModuleType("prompt")
    prompt.KERNEL = sys.modules["digest_kernels.scale"].KERNEL
    monkeypatch.setitem(sys.modules, "prompt", prompt)
    assert before == launcher_digest(prompt.KERNEL, "plain")


@pytest.mark.parametrize(
    "code",
    ['__import__("digest_kernels.other")', "import importlib", "from importlib import import_module", 'exec("VALUE = 1")', "import runpy"],
)
def test_where_code_is_found_while_it_runs_every_file_counts(digest: Callable[..., str], code: str) -> None:
    before, after = (digest("late.py", "VALUE = 1", f"VALUE = 1\n{code}", more={"other.py": f"VALUE = {n}\n"}) for n in (1, 2))
    assert before != after


def test_files_that_are_no_python_count_by_name_and_content(digest: Callable[..., str]) -> None:
    beside = [{}, {"tuning.json": "1"}, {"tuning.json": "2"}, {"other.json": "2"}, {"_lib/table.csv": "2"}]
    assert len(beside) == len({digest(more=more) for more in beside})


def test_what_python_and_editors_leave_behind_does_not_count(digest: Callable[..., str]) -> None:
    assert digest() == digest(more={"__pycache__/scale.cpython-311.pyc": "x", ".scale.py.swp": "x"})


def test_a_file_that_nothing_imports_does_not_count(digest: Callable[..., str]) -> None:
    assert digest("other.py", "1", "2") == digest()


def test_a_partial_launcher_is_found_in_its_file(digest: Callable[..., str]) -> None:
    assert digest("late.py", "1", "2", variant="partial") != digest(variant="partial") == digest()


def test_installed_packages_and_the_harness_are_not_read(
    digest: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *args, **kwargs: (read.append(path), real(path, *args, **kwargs))[1])
    digest("scale.py", "import json", "import json, pytest, harness.records")
    sources = [path for path in read if path.suffix == ".py"]
    assert {"scale.py", "grids.py", "sizes.py", "late.py"} == {path.name for path in sources if path.is_relative_to(tmp_path)}
    assert [] == [path for path in sources if not path.is_relative_to(tmp_path)]
