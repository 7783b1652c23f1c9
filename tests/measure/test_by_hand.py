"""A job file run by hand under pytest: what its command line picks, and its errors, which have three parts and no traceback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import Case, Kernel, Kind, Tolerance, Traffic, Variant
from harness.devices.table import load_devices
from harness.errors import HarnessError
from harness.measure.by_hand import Picked, cells_of

ROOT = Path(__file__).parent.parent.parent
EVERY = Kind(on="unit", applies=lambda kernel, variant, case: True, cell_seconds=1.0, deadline_s=1.0)


def picked(kernels: Any = (), variants: Any = (), cases: Any = (), tags: Any = ()) -> Picked:
    return Picked(tuple(kernels), tuple(variants), tuple(cases), tuple(tags))


@pytest.fixture
def kernels() -> dict[str, Kernel]:
    cases = [Case(N=8, dtype="fp32", tags="smoke cpu"), Case(N=9, dtype="fp32", tags="cpu ragged"), Case(N=64, dtype="fp32")]
    kernel = Kernel(
        name="scale",
        variants={name: Variant(lambda x: x * 2, triton=False) for name in ("double", "twice")},
        default="double",
        baseline="twice",
        axes=("N",),
        cases=cases,
        make_inputs=lambda case, generator: {"x": generator.uniform((case.N,), case.dtype)},
        reference=lambda x: {"y": x.double() * 2},
        outputs=("y",),
        tolerance={"fp32": Tolerance(1e-6, "one rounding")},
        traffic=lambda case: Traffic(4 * case.N, 4 * case.N),
        flops=lambda case: case.N,
    )
    return {"scale": kernel}


def names(cells: Any) -> list[str]:
    return [f"{variant} {case.axes['N']}" for _, variant, case in cells]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"variants": ["double"]}, ["double 8", "double 9", "double 64"]),
        ({"variants": ["double", "tw*"], "cases": ["N=8,*"]}, ["double 8", "twice 8"]),
        ({"variants": ["double"], "cases": ["N=8,*", "N=9,*"]}, ["double 8", "double 9"]),
        ({"variants": ["double"], "tags": ["ragged"]}, ["double 9"]),
        ({"variants": ["double"], "tags": ["ragged", "smoke"]}, ["double 8", "double 9"]),
        ({"kernels": ["other", "scale"], "variants": ["twice"], "tags": ["smoke"]}, ["twice 8"]),
    ],
    ids=["a variant", "two variants", "two cases", "a tag", "two tags", "two kernels"],
)
def test_an_option_that_is_repeated_adds_to_what_is_picked(kernels: dict[str, Kernel], asked: Any, expected: list[str]) -> None:
    assert expected == names(picked(**asked).cells(kernels.values()))


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ({"kernels": ["scael"]}, ("kernel 'scael'", "known: scale", "use 'scale'")),
        ({"variants": ["double", "tripel"]}, ("variant 'tripel'", "known: double, twice", "choose one of those")),
        ({"cases": ["M=9999*"]}, ("case 'M=9999*'", "N=64,dtype=fp32; N=8,dtype=fp32")),
        ({"tags": ["smoke", "headlin"]}, ("tag 'headlin'", "cpu, drift, headline", "use 'headline'")),
        ({"tags": ["*"]}, ("tag '*'",)),
    ],
    ids=["kernel", "variant", "case", "tag", "a tag is no glob"],
)
def test_a_name_that_nothing_declares_is_answered_with_those_that_are(kernels: dict[str, Kernel], asked: Any, parts: Any) -> None:
    with pytest.raises(HarnessError) as raised:
        picked(**asked).check_names(kernels.values())
    assert [part for part in parts if part not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("device", "kind", "asked", "parts"),
    [
        ("cpu", EVERY, {"cases": ["N=64,*"]}, ("latency on cpu of --case 'N=64,*'", "of 2 cells none is tagged cpu", "--device")),
        ("cpu", EVERY, {"cases": ["N=64,*"], "tags": ["smoke"]}, ("no cell that all of these leave", "leave one of them out")),
        ("cpu", Kind("unit", lambda *cell: False, 1.0, 1.0), {}, ("asked: latency on cpu\n", "of 4 cells none that latency applies to")),
        ("cpu", Kind("host", lambda *cell: True, 1.0, 1.0), {}, ("compile for cpu", "pytest jobs/latency.py --device NAME")),
        ("h200", EVERY, {}, ("--device h200", "sees no GPU", "do next: run it where one is")),
    ],
    ids=["not on the interpreter", "tags and cases that no case has together", "another kind's", "nothing to compile", "no GPU"],
)
def test_a_run_that_could_measure_nothing_is_refused(
    kernels: dict[str, Kernel], monkeypatch: Any, device: str, kind: Kind, asked: Any, parts: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HarnessError) as raised:
        cells_of(picked(**asked), kernels, "latency", kind, load_devices()[device])
    assert [part for part in parts if part not in str(raised.value)] == []


def test_what_is_compiled_needs_no_gpu(kernels: dict[str, Kernel], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    host = Kind("host", lambda *cell: True, 1.0, 1.0)
    assert 6 == len(cells_of(picked(), kernels, "static", host, load_devices()["h200"]))


@dataclass(frozen=True)
class Ran:
    """What a run of pytest gave."""

    code: int
    out: str
    err: str


@pytest.fixture
def by_hand(repository: Any) -> Callable[..., Ran]:
    """Runs pytest in the repository, with the engine's own job files, as a user would."""
    shutil.copytree(ROOT / "jobs", repository.root / "jobs", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*args: str, first: str = "") -> Ran:
        ours = ("TRITON_INTERPRET", "PYTEST_")  # pytest-benchmark draws nothing where a variable says that xdist's workers run it
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        command = [sys.executable, "-c", f"{first}\nimport sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))", *args]
        done = subprocess.run(command, cwd=repository.root, env=env, capture_output=True, text=True, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


def check_refused(ran: Ran, *parts: str) -> None:
    assert ran.code == pytest.ExitCode.USAGE_ERROR, ran.out + ran.err
    assert re.fullmatch(r"ERROR: asked: .+\nfound: .+\ndo next: .+\n\n", ran.err)
    assert "Traceback" not in ran.out
    assert [part for part in parts if part not in ran.err] == []


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--kernel", "scael"), ("kernel 'scael'", "use 'scale'")),
        (("--case", "N=64,*"), ("none is tagged cpu",)),
        (("--device", "cpu", "--device", "a100"), ("--device cpu --device a100", "runs on one device")),
        (("-n", "2"), ("-n 2", "pytest-xdist")),
    ],
    ids=["an unknown name", "no cell", "two devices", "xdist"],
)
def test_a_wrong_command_line_ends_without_a_traceback(by_hand: Any, args: Any, parts: Any) -> None:
    check_refused(by_hand("jobs/correctness.py", *args), *parts)


def test_a_histogram_that_cannot_be_drawn_is_refused_before_anything_is_measured(by_hand: Any) -> None:
    ran = by_hand("jobs/latency.py", "--benchmark-histogram", "h", first="import sys; sys.modules['pygal'] = None")
    check_refused(ran, "--benchmark-histogram h", "no package pygal", "pip install 'pytest-benchmark[histogram]'")
    assert "collected" not in ran.out


def test_a_folder_is_answered_with_the_job_files_in_it(by_hand: Any) -> None:
    ran = by_hand("jobs")
    assert ran.code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert re.search(
        r"^asked: pytest jobs\nfound: .+\ndo next: name one: pytest jobs/correctness\.py, .*pytest jobs/latency\.py", ran.out, re.M
    )


def test_what_pytest_benchmark_skips_is_skipped(by_hand: Any) -> None:
    ran = by_hand("jobs/latency.py", "--case", "N=8,*", "--benchmark-skip")
    assert ran.code == 0, ran.out + ran.err
    assert 2 == len(re.findall(r"^scale/\w+/N=8,dtype=fp32@cpu - - skipped \(.*--benchmark-skip", ran.out, re.M))
    assert "crash" not in ran.out


UNTIMED = """
from harness.measure import plugin, timing
from harness.measure.subject import Reading
from harness.records import Status
plugin.Timer.__call__ = lambda self, subject: timing.Timing([Reading("latency_us", None, Status.INVALID, "not_cold")], ())
"""


def test_a_cell_without_a_time_fails_by_its_own_reason(by_hand: Any) -> None:
    ran = by_hand("jobs/latency.py", "--case", "N=8,*", "--variant", "double", first=UNTIMED)
    assert ran.code == pytest.ExitCode.TESTS_FAILED
    assert "latency_us invalid: not_cold" in ran.out
    assert "ValueError" not in ran.out


LEFT_OUT = """
from harness.measure import plugin, timing
from harness.measure.subject import Reading
from harness.records import Status
readings = [Reading("latency_us", 2.0), Reading("gbps", None, Status.SKIPPED, "launch_bound")]
plugin.Timer.__call__ = lambda self, subject: timing.Timing(readings, (2.0, 2.0))
"""


def test_a_figure_that_is_left_out_fails_no_cell(by_hand: Any) -> None:
    ran = by_hand("jobs/latency.py", "--case", "N=8,*", "--variant", "double", first=LEFT_OUT)
    assert ran.code == 0, ran.out + ran.err
    assert "scale/double/N=8,dtype=fp32@cpu gbps - skipped (launch_bound)\n" in ran.out


SCRIPTED = """
from harness.measure import plugin, timing
from harness.measure.subject import Reading
plugin.Timer.__call__ = lambda self, subject: timing.Timing([Reading("latency_us", 8.0)], (7.0, 8.0, 8.0, 8.5, 9.0))
"""


def test_a_histogram_shows_the_measured_times(by_hand: Any, tmp_path: Path) -> None:
    pytest.importorskip("pygal", reason="the extra `kernels` installs it")
    ran = by_hand("jobs/latency.py", "--case", "N=8,*", "--benchmark-histogram", str(tmp_path / "h"), first=SCRIPTED)
    assert ran.code == 0, ran.out + ran.err
    drawn = (tmp_path / "h.svg").read_text()
    assert "Speed in Microseconds (us)" in drawn
    assert 2 == len(re.findall(r"Min: 7\.0000\s.*?Median: 8\.0000\s.*?Max: 9\.0000", drawn, re.DOTALL))


def test_options_may_be_repeated_and_the_device_is_named(by_hand: Any) -> None:
    ran = by_hand("jobs/correctness.py", "--variant", "double", "--case", "N=8,*", "--case", "N=9,*")
    assert ran.code == 0, ran.out + ran.err
    assert "\ndevice: cpu (Triton's interpreter; a GPU: --device NAME)\n" in ran.out
    assert {"scale/double/N=8,dtype=fp32@cpu", "scale/double/N=9,dtype=fp32@cpu"} == set(re.findall(r"^(scale\S+) rel_l2", ran.out, re.M))
