"""Code on its way to a node: a tree as a deterministic tar, and the digest of the engine itself."""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.authoring.workspace import bundled_jobs
from harness.errors import Undecided
from harness.plan.trees import differences

MAX_BYTES = 256 << 20
"""Of one tar: code is small, and Ray holds it in memory."""


class CodeShipError(Undecided):
    """A tree cannot travel, or did not arrive whole."""


@dataclass(frozen=True)
class Shipped:
    """A tree that has arrived.

    Args:
        root: its folder, read-only.
        files: path below `root` -> git blob id.
    """

    root: Path
    files: Mapping[str, str]

    def changed_files(self) -> list[str]:
        """Files that are no longer what arrived: the code under test wrote to them."""
        return differences(self.files, self.root)


def pack(root: Path) -> bytes:
    """The files below `root` as a tar; the same files give the same bytes, whoever packs them and when.

    Raises:
        CodeShipError: something that is no plain file, a link that leads out of the tree or in circles, a name with a control
            character, or too much of it; the path is named.
    """
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _files(root):
            name = path.relative_to(root).as_posix()
            member = tarfile.TarInfo(name)
            data = b""
            if path.is_symlink():
                _check_link(root, path)
                member.type, member.linkname = tarfile.SYMTYPE, os.fspath(path.readlink())
            elif path.is_file():
                data = path.read_bytes()
                member.size, member.mode = len(data), 0o755 if path.stat().st_mode & 0o100 else 0o644
            else:
                raise _refused(path, "it is no plain file", "keep plain files under the code paths")
            if any(ord(c) < 32 for c in name):
                raise _refused(path, "a control character in its name", "rename it")
            tar.addfile(member, io.BytesIO(data))
            if stream.tell() > MAX_BYTES:
                raise _refused(root, f"more than {MAX_BYTES >> 20} MiB of files", "keep data out of the code paths")
    return stream.getvalue()


def digest(data: bytes) -> str:
    """What a tar is called by, on both ends."""
    return hashlib.sha256(data).hexdigest()


def unpack(data: bytes, expected: str, folder: Path) -> Shipped:
    """Write a tar below `folder`, read-only, once for each digest; one that has changed since is put aside and written anew.

    Args:
        expected: the digest that the tar was sent with.

    Raises:
        CodeShipError: the digest is another, or an entry leads out of the tree.
    """
    found = digest(data)
    if found != expected:
        raise CodeShipError(f"the code with digest {expected[:12]}", f"what arrived has {found[:12]}", "submit anew")
    target = folder / expected[:20]
    folder.mkdir(parents=True, exist_ok=True)
    files = _listing(data)
    if target.is_dir() and differences(files, target):
        target.rename(tempfile.mkdtemp(prefix=".changed-", dir=folder))
    if not target.is_dir():
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
        _write(data, part)
        try:
            part.rename(target)
        except OSError:  # another worker of this node wrote the same first
            if not target.is_dir():
                raise
    return Shipped(target, files)


@functools.cache
def engine_digest() -> str:
    """Digest of the engine's own files: its version alone does not tell two source trees apart."""
    package = Path(bundled_jobs.__code__.co_filename).parent.parent
    jobs = bundled_jobs()
    named = {f"harness/{p.relative_to(package).as_posix()}": p for p in _files(package) if not p.is_relative_to(jobs)}
    named |= {f"jobs/{p.relative_to(jobs).as_posix()}": p for p in _files(jobs)}
    total = hashlib.sha256()
    for name in sorted(named):
        if "__pycache__" not in name and named[name].is_file():
            total.update(f"{name}\0{hashlib.sha256(named[name].read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    """Everything below a folder that is no folder, links to folders included, in an order that no machine decides."""
    found = []
    for folder, folders, files in os.walk(root):
        found += [Path(folder, name) for name in files] + [Path(folder, name) for name in folders if Path(folder, name).is_symlink()]
    yield from sorted(found, key=lambda p: p.relative_to(root).as_posix())


def _check_link(root: Path, path: Path) -> None:
    target = os.fspath(path.readlink())
    try:
        end = path.resolve(strict=True)
    except FileNotFoundError:
        end = path.resolve()
    except (OSError, RuntimeError) as error:  # which of the two depends on the version of Python
        if isinstance(error, OSError) and error.errno != errno.ELOOP:
            raise
        raise _refused(path, f"a link that leads in circles, to {target}", "replace it by a file") from error
    if target.startswith("/") or not end.is_relative_to(root.resolve()):
        raise _refused(path, f"a link that leads out of the tree, to {target}", "replace it by a file")


def _refused(path: Path, found: str, do: str) -> CodeShipError:
    return CodeShipError(f"to send the code file {str(path)!r}", found, do)


def _listing(data: bytes) -> dict[str, str]:
    return {name: hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest() for name, _, body in _members(data)}


def _members(data: bytes) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
    """Name, entry and content (of a link: its target) of every entry."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.issym()):
                raise CodeShipError(f"the code entry {member.name!r}", "it leads out of the tree, or is no file", "submit anew")
            stream = tar.extractfile(member) if member.isreg() else None
            yield member.name, member, stream.read() if stream else os.fsencode(member.linkname)


def _write(data: bytes, target: Path) -> None:
    for name, member, body in _members(data):
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            file.symlink_to(os.fsdecode(body))
        else:
            file.write_bytes(body)
            file.chmod(0o555 if member.mode & 0o100 else 0o444)
    for folder in [target, *(p for p in target.rglob("*") if p.is_dir() and not p.is_symlink())]:
        folder.chmod(0o555)
