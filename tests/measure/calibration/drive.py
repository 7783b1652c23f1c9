"""One launch of a calibration as the fork server's child runs it, on the scripted device in place of a GPU.

python drive.py SPEC FD, with the scripted device on PYTHONPATH.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from fake_device import FakeDevice
from known_device import FakeKnown, known_session

from harness.measure import environment, launch
from harness.measure.calibration import known, known_kernels, unit
from harness.measure.clock import session, torch_device


def main() -> None:
    made = known_session(replay_computes=lambda replays: True)
    device = made.device
    assert isinstance(device, FakeDevice)
    torch_device.TorchDevice = lambda row, cache: device
    session.ClockSession = functools.partial(session.ClockSession, settings=made.settings)
    known_kernels.TritonKnown = lambda: FakeKnown(device)
    environment._unit = dict
    unit.SIZES, unit.GRIDS, unit.NODES, unit.MULTIPLES = (256 << 10,), (1,), (1, 16), (0.5, 3.0)
    known.CLOCK_S, known.BLOCKS, known.COPY_CACHES = 0.01, 2, (1, 2)
    sys.exit(launch.run_launch(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])))


if __name__ == "__main__":
    main()
