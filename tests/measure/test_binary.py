"""What a binary's compiler says of it; whole binaries are read in test_static.py."""

from __future__ import annotations

import sys

import pytest

from harness.measure.binary import BinaryError, cubin_resources, cubin_spill_bytes, hsaco_resources, hsaco_spill_bytes

PTXAS_LOG = """ptxas info    : Function properties for add
    32 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 40 bytes cumulative stack size
"""
AMD_METADATA = """
    .set add.num_vgpr, 99
amdhsa.kernels:
  - .agpr_count:     0
    .private_segment_fixed_size: 236
    .vgpr_count:     64
    .vgpr_spill_count: 58
"""


def assemble(log: str, code: bytes = b"cubin"):
    def stage(ptx: str) -> bytes:
        assert ptx == "ptx"
        sys.stdout.write(log)
        return code

    return stage


def test_spills_of_a_cubin_are_stores_and_loads_of_all_its_functions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cubin_spill_bytes(b"cubin", "ptx", assemble(PTXAS_LOG), "add") == 24 + 40 + 4 + 8
    assert capsys.readouterr().out == ""


def test_a_silent_ptxas_is_not_taken_for_no_spills() -> None:
    with pytest.raises(BinaryError, match="ptxas says nothing"):
        cubin_spill_bytes(b"cubin", "ptx", assemble("ptxas info    : Used 64 registers\n"), "add")


def test_a_ptxas_that_makes_several_binaries_is_asked_until_it_makes_this_one() -> None:
    made = iter([b"other", b"third", b"cubin"])

    def stage(ptx: str) -> bytes:
        sys.stdout.write(PTXAS_LOG)
        return next(made)

    assert cubin_spill_bytes(b"cubin", "ptx", stage, "add") == 24 + 40 + 4 + 8


def test_spills_of_another_binary_are_not_this_one_s() -> None:
    with pytest.raises(BinaryError, match="another binary"):
        cubin_spill_bytes(b"cubin", "ptx", assemble(PTXAS_LOG, b"other"), "add")


def test_spills_on_amd_are_registers_of_four_bytes() -> None:
    assert hsaco_spill_bytes(AMD_METADATA, "add") == 4 * 58


def test_assembly_that_does_not_say_is_an_error() -> None:
    with pytest.raises(BinaryError, match=r"0 values of \.vgpr_count"):
        hsaco_spill_bytes("amdhsa.kernels: []", "add")


@pytest.mark.parametrize("read", [lambda code: cubin_resources(code, "add"), lambda code: hsaco_resources(code, AMD_METADATA, "add")])
def test_a_binary_that_is_no_elf_file_is_an_error(read) -> None:
    with pytest.raises(BinaryError, match="no ELF file"):
        read(b"not a binary")
