"""Clocks, power, temperature and throttling of one GPU while it works, sampled by a side process that opens no context.

    python -m harness.devices.telemetry UUID --interval-ms 25

prints one JSON line a sample (see `Sample`), and as its last line {"unavailable": WHY} where there is no more to be had.
What changes slowly and costs most to ask (ECC, partition, processes) is asked every twentieth time and repeated in between.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.devices.clients import Clients
from harness.devices.probe import CannotList
from harness.devices.processes import die_with_parent
from harness.devices.sensors import Sensors, Throttle, open_sensors

INTERVAL_MS = 25
SLOW_EVERY = 20
WINDOW = 24_000
"""Samples a reader keeps: ten minutes of them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a GPU; None where it does not tell.

    Args:
        monotonic_ns: when, by the clock that all processes of the host share.
        sm_clock_mhz: of the multiprocessors; the slowest die of several.
        temperature_c: of the hottest place that is told.
        throttled: names of `Throttle`.
        utilisation: percent of the time in which a kernel ran.
        ecc_uncorrected: uncorrected memory errors since the driver was loaded.
        partition: how the card is divided; `none` where it is whole.
        processes: ids of the processes that compute on it.
        others: of these, the ones that are not the harness's.
    """

    monotonic_ns: int
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    throttled: list[str]
    utilisation: float | None
    ecc_uncorrected: int | None
    partition: str | None
    processes: list[int] | None
    others: list[int] | None


@dataclass(frozen=True)
class Summary:
    """What a GPU did in a stretch of time.

    Args:
        throttled: every reason seen but idleness.
        others: most processes at a time that computed on it and were not the harness's; None where that was never told.
        changed: what is no longer as it was (partition, uncorrected memory errors), in words.
    """

    samples: int
    sm_clock_mhz_min: float | None
    sm_clock_mhz_median: float | None
    power_w_max: float | None
    temperature_c_max: float | None
    throttled: list[str]
    others: int | None = None
    changed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, samples: list[Sample]) -> Summary | None:
        """The summary of samples; None where there are none."""
        if not samples:
            return None
        clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
        return cls(
            samples=len(samples),
            sm_clock_mhz_min=min(clocks, default=None),
            sm_clock_mhz_median=statistics.median(clocks) if clocks else None,
            power_w_max=max((s.power_w for s in samples if s.power_w is not None), default=None),
            temperature_c_max=max((s.temperature_c for s in samples if s.temperature_c is not None), default=None),
            throttled=sorted({reason for s in samples for reason in s.throttled} - {Throttle.IDLE}),
            others=max((len(s.others) for s in samples if s.others is not None), default=None),
            changed=[
                *_moved("partition", [s.partition for s in samples]),
                *_moved("uncorrected memory errors", [s.ecc_uncorrected for s in samples]),
            ],
        )


def _moved(what: str, told: list[Any]) -> list[str]:
    """How a figure moved, as a list of at most one line; what is not told is passed over."""
    known = [value for value in told if value is not None]
    return [f"{what} from {known[0]} to {known[-1]}"] if len(set(known)) > 1 else []


def samples(sensors: Sensors, clients: Clients) -> Iterator[Sample]:
    """Sample without end, as fast as it is asked for.

    Args:
        clients: who knows whose the processes on the GPU are.

    Raises:
        CannotList: the GPU answers no more.
    """
    for number in itertools.count():
        if number % SLOW_EVERY == 0:
            slow = sensors.slow()
            slow["others"] = clients.others(slow["processes"])
        yield Sample(monotonic_ns=time.monotonic_ns(), **sensors.fast(), **slow)


def lines(uuid: str, interval_s: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """The JSON lines of the side process.

    Args:
        uuid: the unit, as `harness.devices.probe` names it.
        interval_s: from one sample to the next.
    """
    try:
        due = time.monotonic()
        for sample in samples(open_sensors(uuid), Clients(os.getppid())):
            yield json.dumps(dataclasses.asdict(sample))
            due = max(due + interval_s, time.monotonic())  # late samples are left out, not caught up with
            sleep(max(0.0, due - time.monotonic()))
    except Exception as error:
        yield json.dumps({"unavailable": error.found if isinstance(error, CannotList) else repr(error)})


class TelemetryReader:
    """Runs the side process and keeps what it says. Start it from a thread that outlives it: Linux kills it with that thread.

    Args:
        uuid: the unit.
        env: the whole environment of the side process; the harness must be importable in it.
        interval_ms: from one sample to the next.
        window: how many samples are kept, the latest.
    """

    def __init__(self, uuid: str, env: Mapping[str, str], interval_ms: int = INTERVAL_MS, window: int = WINDOW) -> None:
        self.unavailable: str | None = None
        self._samples: deque[Sample] = deque(maxlen=window)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.devices.telemetry", uuid, "--interval-ms", str(interval_ms)],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        self._thread = threading.Thread(target=self._read, daemon=True, name=f"telemetry-{uuid}")
        self._thread.start()

    def within(self, *stretches: tuple[int, int]) -> Summary | None:
        """What was seen in stretches of time, each from one instant of `time.monotonic_ns` to another; None where nothing was."""
        with self._lock:
            inside = [s for s in self._samples if any(begin <= s.monotonic_ns <= end for begin, end in stretches)]
        return Summary.of(inside)

    def close(self) -> None:
        """End the side process; what was seen stays."""
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=5)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                try:
                    said = json.loads(line)
                    if "unavailable" in said:
                        self.unavailable = said["unavailable"]
                        return
                    sample = Sample(**said)
                except (ValueError, TypeError):
                    continue  # something a library printed
                with self._lock:
                    self._samples.append(sample)
        self.unavailable = self.unavailable or "the side process ended"


def main() -> None:
    """Print samples until the GPU answers no more, or nobody reads."""
    parser = argparse.ArgumentParser(prog="python -m harness.devices.telemetry", description="Samples one GPU.")
    parser.add_argument("uuid")
    parser.add_argument("--interval-ms", type=int, default=INTERVAL_MS)
    arguments = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's to handle
    with contextlib.suppress(BrokenPipeError):
        for line in lines(arguments.uuid, arguments.interval_ms / 1000):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
