"""Holds the compulsory bytes that a kernel declares against the tensors of a call, on a GPU or without one."""

from __future__ import annotations

from harness.authoring.model import Inputs, Traffic
from harness.measure.extents import dense_bytes
from harness.measure.subject import Subject

TOLERANCE = 0.05
"""How far the bytes may lie outside what the tensors allow, relative."""


def cost_breach(subject: Subject, inputs: Inputs, outputs: int) -> str | None:
    """How the compulsory bytes of a cell contradict its tensors; None where they do not, or where they are another variant's bytes.

    Args:
        inputs: those of one call.
        outputs: bytes that it returned.
    """
    if subject.variant_name != subject.kernel.default and subject.variant.traffic is None:
        return None
    device, mutated = subject.torch_device, subject.variant.mutates or ()
    return breach_of(subject.traffic, dense_bytes(inputs, device), outputs, dense_bytes(inputs, device, mutated))


def breach_of(traffic: Traffic, inputs: int, outputs: int, mutated: int) -> str | None:
    """No input is read twice, every output byte is written, and nothing else but what a call changes in place; else how not.

    Less than all inputs may be read: a call need not touch every slot of a state.

    Args:
        inputs: bytes of the inputs of a call; `outputs` and `mutated` likewise, of what it returns and of what it changes.
    """
    if traffic.read_bytes > (1 + TOLERANCE) * inputs:
        return f"traffic reads {traffic.read_bytes} bytes, and the inputs have {inputs}"
    if traffic.written_bytes < (1 - TOLERANCE) * outputs:
        return f"traffic writes {traffic.written_bytes} bytes, and the outputs have {outputs}"
    if traffic.written_bytes > (1 + TOLERANCE) * (outputs + mutated):
        return f"traffic writes {traffic.written_bytes} bytes, and outputs and mutated inputs have {outputs + mutated}"
    return None
