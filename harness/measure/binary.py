"""Reads what a compiled kernel uses of a GPU from its binary: registers, stack, spills, machine code.

NVIDIA: registers and stack stand in the cubin's `.nv.info` section, as a list of attributes that cuobjdump
--dump-resource-usage prints too. Spills stand nowhere in it, but need stack: so only for a binary with a stack frame is
ptxas run once more, and then it must give the same binary.
AMD: everything stands in the metadata of the assembly that hsaco is made from
(https://llvm.org/docs/AMDGPUUsage.html#amdgpu-amdhsa-code-object-kernel-metadata-v5).
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from harness.errors import HarnessError

REGISTER_BYTES = 4
# Attributes of .nv.info, each a pair (symbol index, value), as cuobjdump -elf names them.
EIATTR_REGCOUNT = 0x2F
EIATTR_MIN_STACK_SIZE = 0x12
EIFMT_SVAL = 0x04
"""The format of an attribute whose size, in bytes, follows in 16 bits; others hold their value in those 16 bits."""

AMD_FIELDS = ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size")
ASSEMBLIES = 16
"""How often ptxas is asked for one binary before it is called another compiler."""
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


class BinaryError(HarnessError):
    """A compiled kernel does not say what it uses, or not in the way that is known."""


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel uses.

    Args:
        registers: 32-bit registers a thread; on AMD vector registers, accumulation registers included.
        stack_bytes: local (AMD: private) memory a thread, with that of the functions it calls.
        code_bytes: machine code.
    """

    registers: int
    stack_bytes: int
    code_bytes: int


def cubin_resources(code: bytes, kernel: str) -> Resources:
    """Read a cubin.

    Raises:
        BinaryError: it is no ELF file, or does not say what `kernel` uses.
    """
    sections = _Sections(code, kernel)
    index = next((i for i, symbol in enumerate(sections.symbols) if symbol == kernel), None)
    values = {attribute: value for attribute, symbol, value in _attributes(sections.data(".nv.info")) if symbol == index}
    for attribute in (EIATTR_REGCOUNT, EIATTR_MIN_STACK_SIZE):
        if attribute not in values:
            raise BinaryError(f"resources of kernel {kernel}", f".nv.info has no attribute {attribute:#x} of it", "use a tested ptxas")
    return Resources(values[EIATTR_REGCOUNT], values[EIATTR_MIN_STACK_SIZE], sections.size(".text"))


def hsaco_resources(code: bytes, assembly: str, kernel: str) -> Resources:
    """Read an hsaco and the assembly it was made from.

    Raises:
        BinaryError: it is no ELF file, or its assembly does not say what `kernel` uses.
    """
    found = _amd_metadata(assembly, kernel)
    return Resources(found["vgpr_count"], found["private_segment_fixed_size"], _Sections(code, kernel).size(".text"))


def hsaco_spill_bytes(assembly: str, kernel: str) -> int:
    """Bytes of register spill a thread: 4 for each vector register that the compiler stores to memory.

    Scalar registers spill into vector registers, and show there; loads are not counted by the compiler.

    Raises:
        BinaryError: the assembly does not say.
    """
    return REGISTER_BYTES * _amd_metadata(assembly, kernel)["vgpr_spill_count"]


def cubin_spill_bytes(code: bytes, ptx: str, assemble: Callable[[str], bytes], kernel: str) -> int:
    """Bytes of register spill a thread, stores plus loads, each instruction counted once, as ptxas -v prints them.

    ptxas is not deterministic for every kernel (seen for sm_100's tensor cores: two to four binaries of one PTX), so it is
    asked again until it makes the binary in question.

    Args:
        assemble: Triton's own last stage, which prints ptxas's log to stdout.

    Raises:
        BinaryError: ptxas says nothing of spills, or makes another binary than `code`.
    """
    for _ in range(ASSEMBLIES):
        with contextlib.redirect_stdout(io.StringIO()) as log:
            again = assemble(ptx)
        if again == code:
            break
    else:
        found = f"ptxas made another binary from the same PTX {ASSEMBLIES} times"
        raise BinaryError(f"spills of kernel {kernel}", found, "use a tested ptxas")
    spills = SPILLS.findall(log.getvalue())
    if not spills:
        raise BinaryError(f"spills of kernel {kernel}", f"ptxas says nothing of them: {log.getvalue()[:200]!r}", "use a tested ptxas")
    return sum(int(stores) + int(loads) for stores, loads in spills)


class _Sections:
    """The sections and symbols of an ELF file."""

    def __init__(self, code: bytes, kernel: str) -> None:
        self.kernel = kernel
        try:
            elf = ELFFile(io.BytesIO(code))
        except ELFError as error:
            raise BinaryError(f"resources of kernel {kernel}", f"its binary is no ELF file ({error})", "clear Triton's cache") from error
        self.sections = {section.name: section for section in elf.iter_sections()}
        table = self.sections.get(".symtab")
        self.symbols = [symbol.name for symbol in table.iter_symbols()] if isinstance(table, SymbolTableSection) else []

    def data(self, name: str) -> bytes:
        """The content of one section."""
        if name not in self.sections:
            raise BinaryError(f"resources of kernel {self.kernel}", f"its binary has no section {name}", "use a tested compiler")
        return bytes(self.sections[name].data())

    def size(self, name: str) -> int:
        """Bytes of a section and of those named after it (`.text`, `.text.<kernel>`)."""
        return sum(section.data_size for title, section in self.sections.items() if title == name or title.startswith(f"{name}."))


def _attributes(data: bytes) -> list[tuple[int, int, int]]:
    """The attributes of .nv.info that hold a symbol and a value: (attribute, symbol, value)."""
    found, at = [], 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != EIFMT_SVAL:
            continue
        if size == 8:
            found.append((attribute, *struct.unpack_from("<II", data, at)))
        at += size
    return found


def _amd_metadata(assembly: str, kernel: str) -> Mapping[str, int]:
    found: dict[str, Any] = {}
    for name in AMD_FIELDS:
        values = re.findall(rf"^\s+(?:- )?\.{name}:\s*(\d+)$", assembly, flags=re.MULTILINE)
        if len(values) != 1:
            raise BinaryError(
                f"resources of kernel {kernel}", f"its assembly gives {len(values)} values of .{name}", "use a tested compiler"
            )
        found[name] = int(values[0])
    return found
