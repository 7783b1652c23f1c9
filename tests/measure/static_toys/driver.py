"""Compiles toy kernels in a process of its own: `driver.py FILE` reads a request, writes the answer to stdout as JSON.

Request: {"cells": [[folder, variant, device], ...], "checks": [name, ...]}; a folder holds toys.py and toy_constants.py.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import triton
from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from harness.devices.table import identify, load_devices
from harness.errors import HarnessError
from harness.measure.launches import Launch
from harness.measure.recording import recording
from harness.measure.static import compile_static
from harness.measure.subject import Subject

DEVICES = load_devices()
CACHE = Path(knobs.cache.dir)
JOB = Path(__file__).parents[3] / "jobs" / "static.py"


def load_toys(folder):
    """The toys of one folder, whatever another folder's were."""
    for name in ("toys", "toy_constants"):
        sys.modules.pop(name, None)
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    importlib.invalidate_caches()
    return importlib.import_module("toys")


def subject(toys, variant, device, torch_device="meta"):
    return Subject(toys.KERNEL, variant, toys.KERNEL.cases[0], DEVICES[device], torch_device)


def cell(toys, variant, device):
    """The readings of one cell as plain data."""
    try:
        readings = compile_static(subject(toys, variant, device))
    except Exception as error:
        return {"raised": type(error).__name__}
    return {
        "values": {r.metric: r.value for r in readings},
        "status": readings[0].status,
        "reason": readings[0].reason,
        **readings[0].columns,
    }


def record(toys, variant, device, inputs) -> list[Launch]:
    with recording(DEVICES[device], CACHE) as recorder:
        getattr(toys, variant)(**inputs)
    return recorder.launches


def meta_inputs():
    return {name: torch.empty(4096, device="meta") for name in ("x", "y")}


def check_specialisation(toys):
    """What Triton assumes of arguments on meta tensors and on real ones that lie alike, by view and backend."""
    views = {
        "whole": lambda t: t,
        "from element 1": lambda t: t[1:],
        "from element 4": lambda t: t[4:],
        "from element 8": lambda t: t[8:],
        "second row": lambda t: t.view(32, 128)[1],
        "one element": lambda t: t[5:6],
        "column": lambda t: t.view(64, 64)[:, 3],
    }
    found = {}
    for device in ("h200", "mi300x"):
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            for name, view in views.items():
                seen = []
                for where in ("meta", "cpu"):
                    x, y = (torch.zeros(4096, dtype=dtype, device=where) for _ in range(2))
                    (launch,) = record(toys, "plain", device, {"x": view(x), "y": y})
                    (choice,) = launch.choices
                    seen.append([choice.signature, sorted(map(str, choice.attributes.items())), launch.binary_hash])
                found[f"{name}, {dtype}, {device}"] = seen
    return found


def check_vectors(toys):
    """Vector loads in the PTX, by launcher."""
    found = {}
    for variant in ("plain", "misaligned"):
        (launch,) = record(toys, variant, "h200", meta_inputs())
        found[variant] = launch.choices[0].binary.assembly.read_text().count("ld.global.v4")
    return found


def check_large(toys):
    """Whether Triton assumes 32-bit offsets of an AMD buffer, by bytes."""
    found = {}
    for elements in (2**29 - 1, 2**29):
        x = torch.empty(elements, device="meta")
        (launch,) = record(toys, "plain", "mi300x", {"x": x, "y": x})
        found[4 * elements] = ["tt.pointer_range", 32] in launch.choices[0].attributes[(0,)]
    return found


def check_resources(toys):
    """What we read from cubins, and what cuobjdump prints of them: [registers, stack]."""
    found = {}
    for device in ("a10g", "h200", "b200"):
        for variant in ("plain", "spilling"):
            (launch,) = record(toys, variant, device, meta_inputs())
            binary = launch.choices[0].binary
            file = CACHE / "binary.cubin"
            file.write_bytes(binary.code)
            dump = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
            words = subprocess.run(dump, capture_output=True, text=True, check=True).stdout.split()
            theirs = [int(word.partition(":")[2]) for word in words if word.startswith(("REG:", "STACK:"))]
            found[f"{variant}, {device}"] = [[binary.resources.registers, binary.resources.stack_bytes], theirs]
    return found


def check_restored(toys):
    """What a recording changed and did not change back."""

    def state():
        return {
            "tensor": sorted(vars(torch.Tensor)),
            "cuda": [torch.cuda.is_available, torch.cuda.get_device_properties, torch.cuda.device, torch.version.hip, torch.version.cuda],
            "triton": [JITFunction.run, JITFunction._do_compile, JITFunction._pack_args, Autotuner.run, triton.runtime.driver._active],
            "knobs": [dict(vars(knobs.compilation)), dict(vars(knobs.cache)), list(knobs.runtime.kernel_load_start_hook.calls)],
            "tuner": sorted(vars(toys.tuned_add)),
            "environment": dict(os.environ),
        }

    for name in ("nargs", "best_config", "bench_time", "configs_timings"):
        setattr(toys.tuned_add, name, None)  # what a run of the autotuner leaves on any GPU
    before = state()
    record(toys, "tuned", "h200", meta_inputs())
    after = state()
    return [name for name in before if before[name] != after[name]]


def check_unit(toys):
    """Hash and registers of one kernel by variant, [compiled for the unit in hand, launched on it]; None without a unit."""
    if not torch.cuda.is_available():
        return None
    seen = torch.cuda.get_device_properties(0)
    device = identify(seen.name, seen.multi_processor_count, DEVICES)
    knobs.compilation.disable_line_info = True
    found = {}
    for variant, first in (("plain", 0), ("misaligned", 1)):
        x, y, o = (torch.zeros(4096, device="cuda") for _ in range(3))
        kernel = toys.add[(4,)](x[first:], y[first:], o, 4096 - 16 * first, BLOCK=1024)
        static = cell(toys, variant, device.name)
        ours = [static["binary_hash"][0], static["values"]["registers"]]
        found[variant] = [ours, [hashlib.sha256(kernel.kernel).hexdigest(), kernel.n_regs]]
    return found


def refusal(action):
    try:
        action()
    except HarnessError as error:
        return str(error)
    return None


def check_refusals(toys):
    """What the errors say, by what is wrong."""
    found = {
        "interpreter device": refusal(lambda: compile_static(subject(toys, "plain", "cpu"))),
        "real tensors": refusal(lambda: compile_static(subject(toys, "plain", "h200", "cpu"))),
    }
    os.environ["TRITON_INTERPRET"] = "1"
    found["interpreting"] = refusal(lambda: compile_static(subject(toys, "plain", "h200")))
    del os.environ["TRITON_INTERPRET"]
    kept = JITFunction._do_compile
    del JITFunction._do_compile
    found["no seam"] = refusal(lambda: compile_static(subject(toys, "plain", "h200")))
    JITFunction._do_compile = kept
    return found


def check_job(toys):
    """How jobs/static.py ends on one good and one bad cell, and what it applies to."""
    spec = importlib.util.spec_from_file_location("static_job", JOB)
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    ends = {}
    for variant in ("twice", "greedy"):
        stored, failure = [], None
        try:
            job.test_static(subject(toys, variant, "h200"), stored.extend)
        except AssertionError as error:
            failure = str(error)
        ends[variant] = [[r.status for r in stored], failure]
    applies = {variant: job.KIND.applies(toys.KERNEL, variant, toys.KERNEL.cases[0]) for variant in ("plain", "eager")}
    return {"on": job.KIND.on, "applies": applies, "ends": ends}


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    answer = {"cells": {}, "checks": {}}
    toys, loaded = None, None
    for folder, variant, device in request["cells"]:
        if folder != loaded:
            toys, loaded = load_toys(folder), folder
        answer["cells"].setdefault(f"{folder} {variant} {device}", []).append(cell(toys, variant, device))
    for name in request["checks"]:
        answer["checks"][name] = globals()[f"check_{name}"](toys)
    sys.stdout.write("\n" + json.dumps(answer))


main()
