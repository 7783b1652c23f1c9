"""Records every kernel launch that a function makes, compiled for a target that need not be there.

    with recording(device, cache) as recorder:
        launcher(*meta_tensors)
    recorder.launches

The launcher runs as it is: Triton specialises, applies heuristics and compiles as it would on the GPU, and only the launch
itself is left out. An autotuned launch compiles every configuration that pruning leaves, times none, and is one launch.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import Language
from triton.compiler.compiler import make_backend
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from harness.devices.table import Device
from harness.errors import HarnessError
from harness.measure.binary import cubin_resources, cubin_spill_bytes, hsaco_resources, hsaco_spill_bytes
from harness.measure.build_failure import summarise
from harness.measure.config import config_text
from harness.measure.launches import Binary, Configured, Launch
from harness.measure.seams import replaced, require
from harness.measure.target import MAX_THREADS, TargetDriver, targeting

BUILD_STEPS = ("_pack_args", "_do_compile")
"""Methods of JITFunction in which a failure means that the kernel cannot be built for the target."""
SAME_TIME = [1.0, 1.0, 1.0]
"""What every configuration is said to take (median and two quantiles): the first one that runs is then the best."""


@dataclass
class Recorder:
    """What was launched, and what could not be built.

    Args:
        compile_s: seconds of compiling; what was in memory or in Triton's cache costs none.
        failure: the last error with which a kernel could not be built, and that kernel.
    """

    launches: list[Launch] = field(default_factory=list)
    compile_s: float = 0.0
    failure: tuple[BaseException, JITFunction[Any]] | None = None

    def forget(self) -> None:
        """Start anew."""
        self.launches, self.compile_s, self.failure = [], 0.0, None

    def failed(self, error: BaseException) -> str | None:
        """The kernel that could not be built and why, in one line; None where `error` is no such failure."""
        if self.failure is None or self.failure[0] is not error:
            return None
        return summarise(error, self.failure[1])


@contextlib.contextmanager
def recording(device: Device, cache: Path) -> Iterator[Recorder]:
    """Record the launches made inside the block, compiled for `device`.

    Args:
        cache: where compiled kernels are kept.

    Raises:
        HarnessError: nothing is compiled for the device, or TRITON_INTERPRET is set.
        SeamError: this Triton has no longer what the recording hooks into.
    """
    if knobs.runtime.interpret:
        raise HarnessError(f"compile for {device.name}", "TRITON_INTERPRET is set: kernels are interpreted", "unset it in this process")
    recorder = Recorder()
    driver = TargetDriver(device, _Launcher, _load_binary, _refuse_to_time)
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(_current, "recorder", recorder))
        stack.enter_context(targeting(device, driver))
        stack.enter_context(knobs.compilation.scope())
        stack.enter_context(knobs.cache.scope())
        # Without line numbers in it, a binary changes only when the code does.
        knobs.compilation.disable_line_info = True
        knobs.compilation.listener = _count_compile
        knobs.cache.dir = str(cache)
        require(knobs.runtime, "kernel_load_start_hook").add(_note_files)
        stack.callback(knobs.runtime.kernel_load_start_hook.remove, _note_files)
        stack.enter_context(replaced(JITFunction, "run", _blaming(JITFunction.run, OutOfResources)))
        for step in BUILD_STEPS:
            stack.enter_context(replaced(JITFunction, step, _blaming(require(JITFunction, step), Exception)))
        stack.enter_context(replaced(Autotuner, "run", _autotuned(Autotuner.run)))
        yield recorder


@dataclass
class _Current:
    """Where launches go: kernels compiled earlier in this process are launched through objects made then."""

    recorder: Recorder | None = None
    files: dict[str, str] = field(default_factory=dict)

    def active(self) -> Recorder:
        if self.recorder is None:
            raise HarnessError("launch a kernel that was compiled for a target", "nothing is recording", "launch it inside recording()")
        return self.recorder


_current = _Current()


def _count_compile(*, times: Any, cache_hit: bool, **_: Any) -> None:
    if not cache_hit:
        _current.active().compile_s += times.total / 1e6


def _note_files(_module: Any, _function: Any, _name: str, files: dict[str, str], _hash: str) -> None:
    """Called by Triton just before it loads a binary, with the files of its cache."""
    _current.files = files


def _load_binary(name: str, code: bytes, _shared: int, _device: int) -> tuple[None, Binary, int, int, int]:
    """What Triton calls to load a binary: (module, function, registers, spilled registers, most threads)."""
    found = {Path(file).suffix: Path(file) for file in _current.files.values()}
    assembly = found.get(".ptx") or found.get(".amdgcn")
    if assembly is None:
        raise HarnessError(f"compile kernel {name}", "Triton kept no assembly of it", "unset TRITON_STORE_BINARY_ONLY")
    resources = cubin_resources(code, name) if assembly.suffix == ".ptx" else hsaco_resources(code, assembly.read_text(), name)
    binary = Binary(name, code, assembly, resources, hashlib.sha256(code).hexdigest())
    return None, binary, resources.registers, resources.stack_bytes // 4, MAX_THREADS


class _Launcher:
    """Stands for the compiled C function that launches one kernel; Triton makes one for each compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.source, self.metadata = source, metadata
        self.config = config_text(source, metadata)

    def __call__(self, x: int, y: int, z: int, _stream: int, binary: Binary, *_arguments: Any) -> None:
        if x * y * z == 0:
            return  # an empty grid is not launched
        source = self.source
        configured = Configured(
            kernel=source.name,
            binary=binary,
            grid=(x, y, z),
            config=self.config,
            shared_bytes=self.metadata.shared,
            signature=dict(source.signature),
            attributes=dict(getattr(source, "attrs", {})),
            spill_bytes=_spill_bytes(binary, self.metadata),
        )
        _current.active().launches.append(Launch((configured,)))


_spills: dict[str, int] = {}


def _spill_bytes(binary: Binary, metadata: Any) -> int:
    if binary.sha256 not in _spills:
        _spills[binary.sha256] = _read_spill_bytes(binary, metadata)
    return _spills[binary.sha256]


def _read_spill_bytes(binary: Binary, metadata: Any) -> int:
    if metadata.target.backend == "hip":
        return hsaco_spill_bytes(binary.assembly.read_text(), binary.name)
    if binary.resources.stack_bytes == 0:
        return 0
    backend = make_backend(metadata.target)
    stages: dict[str, Callable[[str, dict[str, Any]], bytes]] = {}
    backend.add_stages(stages, backend.parse_options(metadata._asdict()), Language.TRITON)
    with knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        return cubin_spill_bytes(binary.code, binary.assembly.read_text(), lambda ptx: stages["cubin"](ptx, {}), binary.name)


def _blaming(original: Callable[..., Any], kind: type[Exception]) -> Callable[..., Any]:
    """A method of JITFunction that notes with which error, of `kind`, the kernel could not be built."""

    def method(kernel: JITFunction[Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(kernel, *args, **kwargs)
        except kind as error:
            _current.active().failure = (error, kernel)
            raise

    return method


def _refuse_to_time(_call: Callable[[], Any], **_: Any) -> list[float]:
    raise HarnessError("benchmark a kernel in a static job", "there is no device to time it on", "autotune with triton.autotune")


def _autotuned(original: Callable[..., Any]) -> Callable[..., Any]:
    """Autotuner.run that launches every configuration once, and keeps them as the choices of one launch."""

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _current.active()
        tried: list[Launch] = []
        refused: list[str] = []

        def try_once(call: Callable[[], Any], **_: Any) -> list[float]:
            kept, recorder.launches = recorder.launches, []
            try:
                call()
                tried.extend(recorder.launches[-1:])  # the kernel itself, after what its pre-hook launched
            except Exception as error:
                refused.append(recorder.failed(error) or type(error).__name__)
                raise
            finally:
                recorder.launches = kept
            return SAME_TIME

        with contextlib.ExitStack() as stack:
            # Choices remembered from another case or target, or kept on disk, would leave configurations uncompiled.
            for name, value in (("cache", {}), ("cache_results", False), ("do_bench", try_once)):
                stack.enter_context(replaced(tuner, name, value))
            before = len(recorder.launches)
            result = original(tuner, *args, **kwargs)
        if tried and len(recorder.launches) > before:
            choices = {(c.config, c.grid, c.binary.sha256): c for launch in tried for c in launch.choices}
            recorder.launches[-1] = Launch(tuple(choices[key] for key in sorted(choices)), tuple(sorted(refused)))
        return result

    return run
