"""One launch of the latency job as the fork server's child runs it, on the scripted device in place of a GPU.

python latency_drive.py SPEC FD, with the scripted device on PYTHONPATH. Tensors are on the CPU, where the scripted device works; no
kernel is Triton's, so none is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from pathlib import Path

from fake_device import FakeDevice
from toys import QUICK

from harness.measure import environment, launch, subject, timing
from harness.measure.clock import launches, session, torch_device


def main() -> None:
    torch_device.TorchDevice = lambda row, cache: FakeDevice()
    session.ClockSession = functools.partial(session.ClockSession, settings=QUICK)
    launches.record_launches = lambda: contextlib.nullcontext([])
    environment._unit = dict
    made = subject.Subject
    subject.Subject = lambda kernel, variant, case, device, where: made(kernel, variant, case, device, "cpu")
    timing.Timer.__call__ = timing.Timer._on_device
    sys.exit(launch.run_launch(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])))


if __name__ == "__main__":
    main()
