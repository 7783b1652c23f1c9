"""Matrix to cells: jobs/matrix.toml, a file of that form, and the filters of the command line."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.authoring.model import TAGS
from harness.devices.table import Device, resolve_devices
from harness.errors import UnknownNameError, WorkspaceError
from harness.plan.describe import Description, KindInfo
from harness.records import Cell, Expected

ROLES = ("default", "baseline")
"""How a matrix names variants: by what they are to their kernel."""
INTERPRETER = "cpu"
"""The device that every machine has: Triton's interpreter. It runs only cases tagged `cpu`."""


@dataclass(frozen=True)
class Entry:
    """One line of a matrix: a kind on some devices.

    Args:
        tags: only cases that carry one of them; all cases if none.
        variants: only variants that are this to their kernel (ROLES); all variants if none.
    """

    kind: str
    devices: tuple[str, ...]
    tags: frozenset[str] = frozenset()
    variants: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Filters:
    """What the command line leaves of a matrix; empty means all."""

    kernels: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()


def read_matrix(name: str, jobs_dir: Path) -> list[Entry]:
    """The entries of a matrix: a name in jobs/matrix.toml, or a path to a file with one [[cells]] list.

    Raises:
        UnknownNameError: no matrix of that name.
        WorkspaceError: bad TOML, or an entry that is not one.
    """
    file = Path(name) if name.endswith(".toml") else jobs_dir / "matrix.toml"
    try:
        data = tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise WorkspaceError(f"matrix {name!r}", f"no file {file}", "name a matrix of jobs/matrix.toml, or a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise WorkspaceError(f"matrix {name!r} in {file}", f"bad TOML: {error}", "mend the file") from error
    table = data if name.endswith(".toml") else data.get(name)
    if table is None:
        raise UnknownNameError.of("matrix", name, data, "choose one of them, add it to jobs/matrix.toml, or give a path to a .toml file")
    cells = table.get("cells") if isinstance(table, dict) else None
    if not isinstance(cells, list) or not cells:
        raise _without_cells(name, file, table)
    return [_entry(cell, name, file) for cell in cells]


def _without_cells(name: str, file: Path, table: Any) -> WorkspaceError:
    """The error for a matrix with no list of entries: a file of its own has no name in its headings, jobs/matrix.toml has."""
    given = "entries with kind, devices and, if wanted, tags and variants"
    if not name.endswith(".toml"):
        return WorkspaceError(f"matrix {name!r} in {file}", "no list `cells`", f"give [[{name}.cells]] {given}")
    named = [key for key, value in table.items() if isinstance(value, dict) and "cells" in value]
    found = f"no list `cells`, but {', '.join(f'[[{key}.cells]]' for key in named)}" if named else "no list `cells`"
    do = f"give [[cells]] {given}: docs/matrices.md has an example"
    return WorkspaceError(f"matrix {name!r}", found, f"{do}; or add it to jobs/matrix.toml, where lists have names" if named else do)


def _entry(cell: Any, matrix: str, file: Path) -> Entry:
    asked = f"matrix {matrix!r} in {file}"
    if not isinstance(cell, dict) or not {"kind", "devices"} <= set(cell) <= {"kind", "devices", "tags", "variants"}:
        raise WorkspaceError(asked, f"entry {cell!r}", "an entry has kind, devices (a list) and, if wanted, tags and variants (lists)")
    kind, devices, tags, variants = cell["kind"], cell["devices"], cell.get("tags", []), cell.get("variants", [])
    for value in (devices, tags, variants):
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise WorkspaceError(asked, f"{value!r} in entry {cell!r}", "give a list of strings")
    if unknown := sorted(set(tags) - set(TAGS)):
        raise UnknownNameError.of("tag", unknown[0], TAGS)
    if unknown := sorted(set(variants) - set(ROLES)):
        raise UnknownNameError.of("variants", unknown[0], ROLES)
    return Entry(str(kind), tuple(devices), frozenset(tags), frozenset(variants))


def expand(entries: Sequence[Entry], what: Description, devices: Mapping[str, Device], filters: Filters) -> list[Expected]:
    """Every cell that a matrix asks for, each kind of a cell once, in the order kind, kernel, variant, case, device.

    A device that the command line names takes the place of an entry's GPUs, so that `--device all` compiles for every
    row; `cpu` stays where an entry has it.

    Raises:
        UnknownNameError: a kernel glob, device or kind that matches nothing; a variant or case glob that matches nothing of the kernels.
    """
    kinds = {k.name: k for k in what.kinds}
    for kind in (*filters.kinds, *(e.kind for e in entries)):
        if kind not in kinds:
            raise UnknownNameError.of("kind", kind, kinds)
    chosen_kernels = [k for k in what.kernels if is_named(k.name, filters.kernels)]
    known = {
        "kernel": (filters.kernels, {k.name for k in what.kernels}),
        "variant": (filters.variants, {v for k in chosen_kernels for v in k.variants}),
        "case": (filters.cases, {c.case for k in chosen_kernels for c in k.cases}),
    }
    for word, (patterns, names) in known.items():
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                of = chosen_kernels[0].name if len(chosen_kernels) == 1 else "NAME"
                raise UnknownNameError.of(word, pattern, names, lists=f"`harness kernels{'' if word == 'kernel' else f' show {of}'}`")
    chosen = resolve_devices(filters.devices, devices) if filters.devices else None
    found: dict[tuple[str, Cell], Expected] = {}
    for entry in entries:
        if filters.kinds and entry.kind not in filters.kinds:
            continue
        for device in _devices_of(entry, devices, chosen):
            for one in _cells(kinds[entry.kind], entry, devices[device], what, filters):
                found.setdefault((entry.kind, one.cell), one)
    return sorted(found.values(), key=lambda e: (e.kind, e.cell))


def _devices_of(entry: Entry, devices: Mapping[str, Device], chosen: Sequence[str] | None) -> list[str]:
    own = resolve_devices(entry.devices, devices)
    if chosen is None:
        return own
    has_gpu = any(name != INTERPRETER for name in own)
    return [name for name in chosen if (name in own if name == INTERPRETER else has_gpu)]


def _cells(kind: KindInfo, entry: Entry, device: Device, what: Description, filters: Filters) -> list[Expected]:
    if kind.on == "host" and device.triton_target is None:
        return []
    tags = what.tags
    roles = {(k.name, getattr(k, role)) for k in what.kernels for role in entry.variants}
    return [
        Expected(Cell(one.kernel, one.variant, one.case, device.name), kind.name, one.limit)
        for one in kind.cells
        if is_named(one.kernel, filters.kernels)
        and is_named(one.variant, filters.variants)
        and is_named(one.case, filters.cases)
        and (not entry.tags or entry.tags & tags[one.kernel, one.case])
        and (not roles or (one.kernel, one.variant) in roles)
        and (device.name != INTERPRETER or "cpu" in tags[one.kernel, one.case])
    ]


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the globs matches a name; each does where there are none."""
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
