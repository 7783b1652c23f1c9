"""A job file run by hand: which cells its command line picks, and what is wrong with it."""

from __future__ import annotations

import fnmatch
import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.authoring.catalogue import job_files
from harness.authoring.model import TAGS
from harness.authoring.workspace import find_workspace
from harness.errors import HarnessError, UnknownNameError

if TYPE_CHECKING:
    import pytest

    from harness.authoring.model import Case, Kernel, Kind
    from harness.devices.table import Device

INTERPRETER = "cpu"
"""The device that every machine has; it runs only cases tagged so."""


@dataclass(frozen=True)
class Picked:
    """What a command line leaves of all cells: globs, and tags of which a case carries one; empty means all."""

    kernels: tuple[str, ...]
    variants: tuple[str, ...]
    cases: tuple[str, ...]
    tags: tuple[str, ...]

    @classmethod
    def by(cls, config: pytest.Config) -> Picked:
        """The options of a pytest run."""
        return cls(*(tuple(config.getoption(option)) for option in ("--kernel", "--variant", "--case", "--tag")))

    def __str__(self) -> str:
        options = {"--kernel": self.kernels, "--variant": self.variants, "--case": self.cases, "--tag": self.tags}
        return " ".join(f"{option} '{value}'" for option, values in options.items() for value in values)

    def check_names(self, kernels: Iterable[Kernel]) -> None:
        """Hold each glob and tag against what the kernels declare.

        Raises:
            UnknownNameError: one matches nothing; variants and cases are those of the kernels picked.
        """
        declared = list(kernels)
        self._check("kernel", self.kernels, {kernel.name for kernel in declared})
        own = [kernel for kernel in declared if _any(self.kernels, kernel.name)]
        self._check("variant", self.variants, {variant for kernel in own for variant in kernel.variants})
        self._check("case", self.cases, {case.key for kernel in own for case in kernel.cases})
        self._check("tag", self.tags, TAGS)

    @staticmethod
    def _check(what: str, patterns: Sequence[str], names: Iterable[str]) -> None:
        known = list(names)
        for pattern in patterns:
            if not any(pattern == name if what == "tag" else fnmatch.fnmatchcase(name, pattern) for name in known):
                raise UnknownNameError.of(what, pattern, known)

    def cells(self, kernels: Iterable[Kernel]) -> Iterator[tuple[Kernel, str, Case]]:
        """Kernel, variant and case of all that is picked, for any kind and device."""
        for kernel in kernels:
            if _any(self.kernels, kernel.name):
                cases = [case for case in kernel.cases if _any(self.cases, case.key) and (not self.tags or case.tags & {*self.tags})]
                yield from ((kernel, variant, case) for variant in kernel.variants if _any(self.variants, variant) for case in cases)


def _any(patterns: Sequence[str], name: str) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def cells_of(picked: Picked, kernels: Mapping[str, Kernel], name: str, kind: Kind, device: Device) -> list[tuple[Kernel, str, Case]]:
    """The cells that a job file runs.

    Args:
        name: of the kind.

    Raises:
        HarnessError: there is none, or the device cannot run them.
    """
    if kind.on == "host" and device.triton_target is None:
        do = f"pytest jobs/{name}.py --device NAME, any GPU of `harness devices`: none needs to be here"
        raise HarnessError(f"compile for {device.name}", "it is Triton's interpreter, for which nothing is compiled", do)
    every = list(picked.cells(kernels.values()))
    here = [cell for cell in every if device.name != INTERPRETER or "cpu" in cell[2].tags]
    found = [cell for cell in here if kind.applies(*cell)]
    if not found:
        asked = f"{name} on {device.name}" + (f" of {picked}" if str(picked) else "")
        raise HarnessError(asked, *_why_none(len(every), len(here), name))
    if kind.on != "host" and device.name != INTERPRETER:
        _check_gpu(device)
    return found


def _why_none(picked: int, here: int, kind: str) -> tuple[str, str]:
    show = "`harness kernels show NAME` lists variants, cases and tags"
    if not picked:
        return "no cell that all of these leave", f"leave one of them out; {show}"
    if not here:
        interpreter = f"of {picked} cells none is tagged cpu, and only such cases run in Triton's interpreter"
        return interpreter, f"name a GPU with --device, or pick cases tagged cpu; {show}"
    return f"of {here} cells none that {kind} applies to", f"pick others, or run another job file; {show}"


def _check_gpu(device: Device) -> None:
    import torch

    if not torch.cuda.is_available():
        do = "run it where one is (`harness doctor` says what this machine lacks), or leave --device out: then Triton's interpreter runs it"
        raise HarnessError(f"--device {device.name}", f"torch {torch.__version__} sees no GPU here", do)


def check_histogram(config: pytest.Config) -> None:
    """Ask for what pytest-benchmark draws with before anything is measured.

    Raises:
        HarnessError: it is not installed.
    """
    prefixes = config.getoption("benchmark_histogram", None)
    if prefixes and importlib.util.find_spec("pygal") is None:
        found = "no package pygal, with which pytest-benchmark draws"
        raise HarnessError(f"--benchmark-histogram {prefixes[0]}", found, "pip install 'pytest-benchmark[histogram]'")


def no_job_file(config: pytest.Config) -> HarnessError:
    """What to do where pytest collected nothing."""
    folder = find_workspace(config.invocation_params.dir).jobs_dir
    own = ", ".join(f"pytest {os.path.relpath(file, config.invocation_params.dir)}" for file in job_files(folder))
    asked = " ".join(["pytest", *map(str, config.invocation_params.args)])
    return HarnessError(asked, "no job file among these: of a folder pytest takes test_*.py alone", f"name one: {own}")
