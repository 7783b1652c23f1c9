"""A folder on the local disk or an object store, by path or URI; files in it appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from harness.errors import StoreError, Undecided

_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Folder:
    """A place for files. Paths inside it are relative and use `/`.

    Args:
        filesystem: where it is.
        root: its path there, without a `/` at the end.
    """

    filesystem: fs.FileSystem
    root: str

    def __str__(self) -> str:
        return self.root if self.local else f"{self.filesystem.type_name}://{self.root}"

    @property
    def local(self) -> bool:
        """Whether it is on this machine's disk."""
        return bool(self.filesystem.type_name == "local")

    @property
    def exists(self) -> bool:
        """Whether there is a folder: on an object store, whether a file is below.

        Raises:
            StoreError: the store cannot be reached.
        """
        with _reaching(str(self)):
            info = self.filesystem.get_file_info(self.root or "/")
        return bool(info.type == fs.FileType.Directory)

    def at(self, path: str) -> Folder:
        """The folder below at `path`, which need not exist."""
        return Folder(self.filesystem, f"{self.root}/{path}")

    def where(self, path: str) -> str:
        """A file's full name, for people."""
        return f"{self}/{path}"

    def children(self) -> list[str]:
        """Names of the folders in it, sorted: none where it does not exist, none that begins with `.` or `_`."""
        return [name for name, kind in self._entries(recursive=False) if kind == fs.FileType.Directory]

    def files(self, suffix: str) -> list[str]:
        """Paths of all files below it with a suffix, sorted: none where it does not exist, none with a part that begins with `.` or `_`."""
        return [name for name, kind in self._entries(recursive=True) if kind == fs.FileType.File and name.endswith(suffix)]

    def size(self, path: str) -> int | None:
        """Bytes of a file, None where there is none.

        Raises:
            StoreError: the store cannot be reached.
        """
        with _reaching(self.where(path)):
            info = self.filesystem.get_file_info(f"{self.root}/{path}")
        return info.size if info.type == fs.FileType.File else None

    def read(self, path: str) -> bytes:
        """Content of a file.

        Raises:
            StoreError: it does not exist or cannot be read.
        """
        with _reaching(self.where(path)), self.filesystem.open_input_file(f"{self.root}/{path}") as stream:
            return bytes(stream.read())

    def write(self, path: str, content: bytes) -> None:
        """Write a file whole, in place of one of that name.

        On disk: to a temporary name in the same folder, flushed, then renamed. On an object store: one put.

        Raises:
            StoreError: it cannot be written; nothing of it is left then.
            Undecided: likewise, for want of room.
        """
        with _reaching(self.where(path)):
            if self.local:
                _replace(Path(self.root, path), content)
                return
            full = f"{self.root}/{path}"
            self.filesystem.create_dir(full.rpartition("/")[0], recursive=True)
            with self.filesystem.open_output_stream(full) as stream:
                stream.write(content)

    def _entries(self, *, recursive: bool) -> Iterator[tuple[str, fs.FileType]]:
        with _reaching(str(self)):
            infos = self.filesystem.get_file_info(fs.FileSelector(self.root, recursive=recursive, allow_not_found=True))
        for info in sorted(infos, key=lambda info: info.path):
            name = info.path.removeprefix(self.root).lstrip("/")
            if not any(part.startswith((".", "_")) for part in name.split("/")):
                yield name, info.type


def open_folder(place: str | Path) -> Folder:
    """The folder at a path, or at a URI such as `s3://bucket/runs`.

    Raises:
        StoreError: no file system for the URI.
    """
    if "://" not in str(place):
        return Folder(fs.LocalFileSystem(), Path(place).expanduser().absolute().as_posix().rstrip("/"))
    try:
        filesystem, root = fs.FileSystem.from_uri(str(place))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"the store {place}", str(error), "give a path, or a URI such as s3://bucket/folder") from error
    return Folder(filesystem, root.rstrip("/"))


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _reaching(where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None) in _FULL:
            do = "make room, then the same again; a run goes on with harness submit --resume RUN"
            raise Undecided(f"to write {where}", str(error), do) from error
        raise StoreError(where, str(error), "check the path, its permissions and its credentials") from error
