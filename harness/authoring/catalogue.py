"""Finds kernel and job files by scanning folders, imports them, and says which file and line is broken.

Kernel files are imported as `kernels.<stem>`, so that they can share code as `from kernels._lib import ...`.
One process loads one workspace.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.authoring.model import NAME, DeclarationError, Kernel, Kind
from harness.authoring.workspace import Workspace
from harness.errors import KernelFileError, WorkspaceError

EXTRA = ("torch", "triton", "pytest", "pytest_benchmark")
"""Modules of the extra `kernels`, which the core alone is installed without."""


@dataclass(frozen=True)
class Loaded:
    """A kernel, the file that declares it and that file's docstring."""

    kernel: Kernel
    file: Path
    doc: str


def load_kernels(workspace: Workspace) -> dict[str, Loaded]:
    """Every kernel of the workspace by name, in file order.

    Raises:
        KernelFileError: a file cannot be imported, declares no KERNEL, or two declare one name.
        WorkspaceError: no kernels/ folder, or it holds no kernel file; or what they import is not installed (EXTRA).
    """
    _prepare_imports(workspace)
    kernels: dict[str, Loaded] = {}
    for file in kernel_files(workspace):
        loaded = load_kernel(file)
        name = loaded.kernel.name
        if name in kernels:
            raise KernelFileError(
                f"kernel {name!r}", f"two files declare it: {kernels[name].file} and {file}", "give one of them another name="
            )
        kernels[name] = loaded
    return kernels


def load_named(workspace: Workspace, names: Collection[str]) -> dict[str, Loaded]:
    """Some kernels of the workspace by name, without those names that nobody declares; of the other files no more is read than it
    takes to find them, since each launch pays for it.

    Raises:
        KernelFileError: a file that is read is broken.
    """
    _prepare_imports(workspace)
    found: dict[str, Loaded] = {}
    for file in sorted(kernel_files(workspace), key=lambda file: (file.stem not in names, file)):
        if found.keys() >= set(names):
            break
        loaded = load_kernel(file)
        found[loaded.kernel.name] = loaded
    return {name: found[name] for name in names if name in found}


def kernel_files(workspace: Workspace) -> list[Path]:
    """The files in kernels/ that declare kernels: every *.py whose name does not start with an underscore.

    Raises:
        WorkspaceError: there is none.
    """
    folder = workspace.kernels_dir
    files = sorted(f for f in folder.glob("*.py") if not f.name.startswith("_")) if folder.is_dir() else []
    if not files:
        raise WorkspaceError(
            f"the kernels of {workspace.root}", f"no kernel file in {folder}", "add kernels/<name>.py with KERNEL = Kernel(...)"
        )
    return files


def load_kernel(file: Path) -> Loaded:
    """The kernel that one file declares; its name defaults to the file's.

    Raises:
        KernelFileError: with the file and the line at fault.
    """
    asked = f"kernel file {file}"
    if not NAME.fullmatch(file.stem):
        raise KernelFileError(asked, f"the name {file.stem!r}", "use lower-case letters, digits and underscores, a letter first")
    with _blame(asked, file.parent):
        module = importlib.import_module(f"kernels.{file.stem}")
    kernel = getattr(module, "KERNEL", None)
    if not isinstance(kernel, Kernel):
        raise KernelFileError(
            asked,
            "no KERNEL" if kernel is None else f"KERNEL is a {type(kernel).__name__}",
            "end the file with KERNEL = Kernel(...), or start its name with an underscore if it only holds shared code",
        )
    named = kernel.named(file.stem)
    if not NAME.fullmatch(named.name):
        raise KernelFileError(asked, f"name={named.name!r}", "use lower-case letters, digits and underscores, a letter first")
    return Loaded(named, file, module.__doc__ or "")


def load_kinds(workspace: Workspace) -> dict[str, tuple[Kind, Path]]:
    """Every kind of job by name, with its file, from jobs/.

    Raises:
        KernelFileError: a job file cannot be imported.
    """
    return {file.stem: (load_kind(file), file) for file in job_files(workspace.jobs_dir)}


def job_files(folder: Path) -> list[Path]:
    """The job files of a folder: every *.py but conftest.py and those that start with an underscore."""
    return sorted(f for f in folder.glob("*.py") if f.name != "conftest.py" and not f.name.startswith("_"))


def load_kind(file: Path) -> Kind:
    """The kind that one job file declares.

    Raises:
        KernelFileError: with the file and the line at fault.
    """
    asked = f"job file {file}"
    spec = importlib.util.spec_from_file_location(f"harness_job_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _blame(asked, file.parent):
        spec.loader.exec_module(module)
    kind = getattr(module, "KIND", None)
    if not isinstance(kind, Kind):
        raise KernelFileError(asked, "no KIND", "declare KIND = Kind(...) in it, or start its name with an underscore")
    return kind


def as_known(text: str, root: Path) -> str:
    """A text whose paths below the root of a workspace are relative to it: as the user knows them, wherever it was checked out."""
    return re.sub(
        rf"(?<![\w./-]){re.escape(str(root))}(?:(/)(?=[\w.-])|(?![\w./-]))", lambda found: "" if found[1] else "the workspace", text
    )


def loaded_workspace() -> Workspace | None:
    """The workspace that this process loaded last; None before."""
    return _loaded[-1] if _loaded else None


_loaded: list[Workspace] = []


def _prepare_imports(workspace: Workspace) -> None:
    _loaded[:] = [workspace]
    package = types.ModuleType("kernels")
    package.__path__ = [str(workspace.kernels_dir)]
    sys.modules["kernels"] = package
    for source in workspace.sources:
        path = workspace.root / source
        folder = str(path.parent if path.is_file() or (path / "__init__.py").is_file() else path)
        if folder not in sys.path:
            sys.path.insert(0, folder)


class _blame:
    """Turns whatever importing a file raises into a KernelFileError that names file and line; what is not installed is not its fault."""

    def __init__(self, asked: str, folder: Path) -> None:
        self.asked, self.folder = asked, folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, Exception | SystemExit):
            return
        place = next(self._places(error), "")
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRA:
            found = f"{error.name} is not installed here, which {place.rstrip(': ') or 'it'} imports"
            do = "install the harness with its extra `kernels` into this environment: pip install -e '.[kernels]' in its folder"
            raise WorkspaceError(self.asked, found, do) from error
        kind = "" if isinstance(error, DeclarationError) else f"{type(error).__name__}: "
        text = str(error) or type(error).__name__
        raise KernelFileError(self.asked, f"{place}{kind}{text}", "mend the line named above") from error

    def _places(self, error: BaseException) -> Iterator[str]:
        if isinstance(error, SyntaxError) and error.filename:
            yield f"{error.filename}:{error.lineno}: "
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if Path(frame.filename).is_relative_to(self.folder):
                yield f"{frame.filename}:{frame.lineno}: "
