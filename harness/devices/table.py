"""Reads devices.toml, the list of GPUs: the only place where a GPU is named."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from harness.devices.properties import DeviceProperties
from harness.errors import HarnessError, UnknownNameError

DEFAULT_PATH = Path(__file__).with_name("devices.toml")
ALL = "all"
"""What stands for every row, wherever device names are taken."""

NAME = re.compile(r"[a-z][a-z0-9_]*")
TEXTS = ("vendor", "model", "arch")
FIGURES = (
    "warp_size",
    "multiprocessors",
    "memory_bytes",
    "usable_memory_bytes",
    "peak_gbps",
    "last_level_cache_bytes",
    "shared_bytes_per_block",
    "shared_bytes_per_multiprocessor",
    "registers_per_multiprocessor",
    "max_warps_per_multiprocessor",
    "max_blocks_per_multiprocessor",
    "max_graph_nodes",
)
FRACTIONAL = frozenset({"peak_gbps"})
"""Figures that need not be whole."""

OPTIONAL = ("triton_target", "also_reported_as")
GUIDE = "docs/devices.md says what each field means"


class DeviceTableError(HarnessError):
    """A device table cannot be read: the file, the row and the field are named."""


class Vendor(StrEnum):
    """Who makes a device; `any` is the interpreter, which runs on any host."""

    NVIDIA = "nvidia"
    AMD = "amd"
    ANY = "any"

    @property
    def backend(self) -> str:
        """The backend as Triton names it: `cuda`, `hip`, or `cpu` for the interpreter."""
        return {Vendor.NVIDIA: "cuda", Vendor.AMD: "hip", Vendor.ANY: "cpu"}[self]


@dataclass(frozen=True)
class Device:
    """One row of devices.toml; docs/devices.md says where each figure is used.

    Args:
        name: how the device is written in cells (`...@name`), on the command line and in records.
        model: the name that the driver reports for a unit of this device.
        arch: the instruction set, as the vendor's compiler names it.
        triton_target: backend and architecture as Triton's GPUTarget takes them, with a space between; None on the interpreter.
        properties: what a launcher may ask of the device.
        memory_bytes: capacity of the memory as it is sold.
        usable_memory_bytes: capacity that the runtime reports.
        peak_gbps: the memory's peak bandwidth, in 10**9 bytes per second.
        last_level_cache_bytes: cache in front of the memory, whatever level the vendor gives it.
        registers_per_multiprocessor: 32-bit registers.
        max_warps_per_multiprocessor: resident warps (wavefronts).
        max_blocks_per_multiprocessor: resident blocks (workgroups).
        shared_bytes_per_multiprocessor: shared memory (LDS).
        max_graph_nodes: kernels that one captured graph may hold.
        groups: groups of the table that hold the device, in file order; `all` is none of them.
        sources: for each figure, where it comes from.
        also_reported_as: further names that drivers report for it.
    """

    name: str
    vendor: Vendor
    model: str
    arch: str
    triton_target: str | None
    properties: DeviceProperties
    memory_bytes: int
    usable_memory_bytes: int
    peak_gbps: float
    last_level_cache_bytes: int
    registers_per_multiprocessor: int
    max_warps_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    max_graph_nodes: int
    groups: tuple[str, ...]
    sources: Mapping[str, str]
    also_reported_as: tuple[str, ...] = ()

    @property
    def gpu_target(self) -> tuple[str, int | str, int] | None:
        """Arguments of Triton's GPUTarget: backend, architecture, warp size; None on the interpreter."""
        if self.triton_target is None:
            return None
        backend, arch = self.triton_target.split()
        return backend, int(arch) if arch.isdigit() else arch, self.properties.warp_size


def load_devices(path: Path | None = None) -> Mapping[str, Device]:
    """Read the devices of a table by name, in file order; the project's own table, read once, when no path is given.

    Raises:
        DeviceTableError: no such file, bad TOML, a field that is missing, unknown, of the wrong type or without a source,
            a group that names no device.
    """
    return _default_devices() if path is None else _read(path)


def resolve_devices(names: Sequence[str], devices: Mapping[str, Device]) -> list[str]:
    """Expand device names, groups and `all` to device names, in file order and without duplicates.

    Raises:
        UnknownNameError: a name that is neither a device, a group nor `all`.
    """
    groups = {group for device in devices.values() for group in device.groups}
    for name in names:
        if name != ALL and name not in devices and name not in groups:
            raise UnknownNameError.of("device", name, [*devices, *groups, ALL])
    wanted = set(names)
    return [name for name, device in devices.items() if ALL in wanted or name in wanted or not wanted.isdisjoint(device.groups)]


def identify(model: str, multiprocessors: int | None, devices: Mapping[str, Device]) -> Device | None:
    """The device of a unit that reports this model and this many multiprocessors, or None if no row is meant.

    Both must agree: several products may report one name, and a partition of a GPU is not that GPU. A library that
    does not count multiprocessors gives None: then the name alone decides, if it is one row's.
    """
    if multiprocessors is None:
        named = [d for d in devices.values() if model in (d.model, *d.also_reported_as)]
        return named[0] if len(named) == 1 else None
    for device in devices.values():
        if model in (device.model, *device.also_reported_as) and multiprocessors == device.properties.multiprocessors:
            return device
    return None


@functools.cache
def _default_devices() -> Mapping[str, Device]:
    return _read(DEFAULT_PATH)


def _read(path: Path) -> Mapping[str, Device]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DeviceTableError(f"read the device table {path}", str(error), "give a TOML file that can be read") from error
    tables = {}
    for table in ("devices", "groups", "documents"):
        tables[table] = data.pop(table, None)
        if not isinstance(tables[table], dict):
            raise DeviceTableError(f"read the device table {path}", f"no table [{table}]", f"add [{table}]; {GUIDE}")
    if data:
        raise DeviceTableError(f"read the device table {path}", f"unknown table {next(iter(data))!r}", f"remove it; {GUIDE}")
    rows = {name: _Row(path, name, row, tables["documents"]) for name, row in tables["devices"].items()}
    groups = _groups(path, tables["groups"], rows)
    return MappingProxyType({name: row.device(groups) for name, row in rows.items()})


def _groups(path: Path, table: Mapping[str, Any], rows: Mapping[str, _Row]) -> dict[str, list[str]]:
    """Members of each group, by the group's name."""
    for group in table:
        if group == ALL or group in rows or not NAME.fullmatch(group):
            raise DeviceTableError(f"read group {group!r} of {path}", "the name is reserved, a device's, or no word", "rename the group")
    return {group: _members(f"read group {group} of {path}", members, rows) for group, members in table.items()}


def _members(asked: str, members: Any, rows: Mapping[str, _Row]) -> list[str]:
    """Members of one group: a list of devices, or every device of one vendor."""
    if isinstance(members, dict) and list(members) == ["vendor"] and members["vendor"] in tuple(Vendor):
        return [name for name, row in rows.items() if row.text("vendor") == members["vendor"]]
    if not isinstance(members, list) or not members:
        form = f'write a list of devices, or {{ vendor = "..." }} with one of {", ".join(Vendor)}'
        raise DeviceTableError(asked, repr(members), form)
    for member in members:
        if not isinstance(member, str) or member not in rows:
            raise DeviceTableError(asked, f"member {member!r} is no device", f"use some of {', '.join(rows)}")
    return members


class _Row:
    """One [devices.NAME] table while it is checked: the names that every error needs, and access by kind of field."""

    def __init__(self, path: Path, name: str, table: Any, documents: Mapping[str, Any]) -> None:
        self.path, self.name, self.table, self.documents = path, name, table, documents
        if not NAME.fullmatch(name) or name == ALL or not isinstance(table, dict):
            self.fail(None, "not a table named by a word of a-z, 0-9 and _", "rename it, or make it a table")
        for field in table:
            if field not in (*TEXTS, *FIGURES, *OPTIONAL):
                self.fail(field, "an unknown field", f"remove it, or use one of {', '.join((*TEXTS, *OPTIONAL, *FIGURES))}")

    def fail(self, field: str | None, found: str, do: str) -> NoReturn:
        """Raise the error that names file, row and field."""
        where = f"row {self.name}" + (f", field {field}," if field else "")
        raise DeviceTableError(f"read {where} of {self.path}", found, do)

    def text(self, field: str) -> str:
        """A field that holds words."""
        if field not in self.table:
            self.fail(field, "no such field", f"add it; {GUIDE}")
        value = self.table[field]
        if not isinstance(value, str) or not value.strip():
            self.fail(field, f"{value!r}, which is no text", f'write {field} = "..."')
        return value

    def figure(self, field: str) -> tuple[int | float, str]:
        """A figure and its source in words."""
        form = f"write {field} = {{ value = NUMBER, source = DOCUMENT }}"
        if field not in self.table:
            self.fail(field, "no such field", f"{form}; {GUIDE}")
        entry = self.table[field]
        if not isinstance(entry, dict) or not {"value", "source"} <= set(entry) <= {"value", "source", "note"}:
            self.fail(field, f"{entry!r}, not a value with its source and at most a note", form)
        value, source, note = entry["value"], entry["source"], entry.get("note", "")
        kinds = (int, float) if field in FRACTIONAL else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < float("inf"):
            self.fail(field, f"value {value!r}", f"write a positive {'number' if field in FRACTIONAL else 'whole number'}")
        if not isinstance(source, str) or not isinstance(note, str):
            self.fail(field, f"source {source!r}, note {note!r}", "write both as text")
        document = source if "://" in source else self.documents.get(source)
        if not isinstance(document, str):
            self.fail(field, f"source {source!r}", f"write a title with its address, or one of [documents]: {', '.join(self.documents)}")
        return (float(value) if field in FRACTIONAL else value), f"{document} ({note})" if note else document

    def target(self, vendor: Vendor, arch: str) -> str | None:
        """The compile target, which must be the one of `arch`."""
        if vendor is Vendor.ANY:
            if "triton_target" in self.table:
                self.fail("triton_target", repr(self.table["triton_target"]), "remove it: the interpreter compiles for no target")
            return None
        expected = f"{vendor.backend} {arch.removeprefix('sm_')}"
        pattern = r"sm_\d+" if vendor is Vendor.NVIDIA else r"gfx[0-9a-f]+"
        if not re.fullmatch(pattern, arch):
            self.fail("arch", repr(arch), f"write it as the vendor's compiler does: it matches {pattern}")
        if self.text("triton_target") != expected:
            self.fail("triton_target", repr(self.table["triton_target"]), f"write {expected!r}, as vendor and arch say")
        return expected

    def aliases(self) -> tuple[str, ...]:
        """Further model names; none unless given."""
        names = self.table.get("also_reported_as", [])
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            self.fail("also_reported_as", repr(names), "write a list of names")
        return tuple(names)

    def device(self, groups: Mapping[str, list[str]]) -> Device:
        """The row, checked."""
        texts = {field: self.text(field) for field in TEXTS}
        if texts["vendor"] not in tuple(Vendor):
            self.fail("vendor", repr(texts["vendor"]), f"write one of {', '.join(Vendor)}")
        vendor = Vendor(texts["vendor"])
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for field in FIGURES:
            values[field], sources[field] = self.figure(field)
        for low, high in (("usable_memory_bytes", "memory_bytes"), ("shared_bytes_per_block", "shared_bytes_per_multiprocessor")):
            if values[low] > values[high]:
                self.fail(low, f"{values[low]}, more than {high} = {values[high]}", "correct one of the two")
        properties = DeviceProperties(
            backend=vendor.backend,
            multiprocessors=values.pop("multiprocessors"),
            shared_bytes_per_block=values.pop("shared_bytes_per_block"),
            warp_size=values.pop("warp_size"),
            last_level_cache_bytes=values["last_level_cache_bytes"],
        )
        return Device(
            name=self.name,
            vendor=vendor,
            model=texts["model"],
            arch=texts["arch"],
            triton_target=self.target(vendor, texts["arch"]),
            properties=properties,
            groups=tuple(group for group, members in groups.items() if self.name in members),
            sources=MappingProxyType(sources),
            also_reported_as=self.aliases(),
            **values,
        )
