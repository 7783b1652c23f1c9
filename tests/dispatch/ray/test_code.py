"""Code on its way to a node: the same tar from the same files, nothing that leads out, and what arrived is what was sent."""

import io
import os
import stat
import tarfile

import pytest

from harness.dispatch.ray.code import CodeShipError, digest, engine_digest, pack, unpack


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "kernels").mkdir(parents=True)
    (root / "kernels/scale.py").write_text("x = 1\n")
    (root / "kernels/run.sh").write_text("#!/bin/sh\n")
    (root / "kernels/run.sh").chmod(0o755)
    (root / "kernels/alias.py").symlink_to("scale.py")
    (root / "pyproject.toml").write_text("[tool.harness]\n")
    return root


def test_the_same_files_give_the_same_bytes_whatever_their_times_and_places(tree, tmp_path):
    first = pack(tree)
    other = tmp_path / "elsewhere"
    other.mkdir()
    for name in ("pyproject.toml", "kernels/scale.py", "kernels/run.sh"):
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_bytes((tree / name).read_bytes())
        os.utime(other / name, (1, 1))
    (other / "kernels/run.sh").chmod(0o700)
    (other / "kernels/alias.py").symlink_to("scale.py")
    assert first == pack(other)


@pytest.mark.parametrize("change", ["text", "mode", "link", "name"])
def test_another_tree_has_another_digest(tree, change):
    before = digest(pack(tree))
    if change == "text":
        (tree / "kernels/scale.py").write_text("x = 2\n")
    elif change == "mode":
        (tree / "kernels/scale.py").chmod(0o755)
    elif change == "link":
        (tree / "kernels/alias.py").unlink()
        (tree / "kernels/alias.py").symlink_to("run.sh")
    else:
        (tree / "kernels/scale.py").rename(tree / "kernels/scales.py")
    assert before != digest(pack(tree))


def test_what_arrives_is_what_was_sent_and_read_only(tree, tmp_path):
    data = pack(tree)
    shipped = unpack(data, digest(data), tmp_path / "node")
    assert "x = 1\n" == (shipped.root / "kernels/alias.py").read_text()
    assert {"kernels/scale.py": 0o444, "kernels/run.sh": 0o555, "kernels": 0o555, ".": 0o555} == {
        name: stat.S_IMODE((shipped.root / name).stat().st_mode) for name in ("kernels/scale.py", "kernels/run.sh", "kernels", ".")
    }
    assert [] == shipped.changed_files()
    assert data == pack(shipped.root)


def test_it_is_unpacked_once_a_digest_and_node(tree, tmp_path):
    data = pack(tree)
    first = unpack(data, digest(data), tmp_path / "node")
    inode = first.root.stat().st_ino
    assert inode == unpack(data, digest(data), tmp_path / "node").root.stat().st_ino


def test_code_that_was_changed_on_the_node_is_seen_and_written_anew(tree, tmp_path):
    data = pack(tree)
    shipped = unpack(data, digest(data), tmp_path / "node")
    (shipped.root / "kernels/scale.py").chmod(0o644)
    (shipped.root / "kernels/scale.py").write_text("x = 3\n")
    assert ["kernels/scale.py"] == shipped.changed_files()
    again = unpack(data, digest(data), tmp_path / "node")
    assert (shipped.root, []) == (again.root, again.changed_files())


def test_a_tar_with_another_digest_is_refused(tree, tmp_path):
    data = pack(tree)
    with pytest.raises(CodeShipError, match="what arrived has"):
        unpack(data + b"\0" * 512, digest(data), tmp_path / "node")


@pytest.mark.parametrize(
    ("name", "target", "found"),
    [
        ("up.py", "../../../outside.py", "leads out of the tree"),
        ("absolute.py", "/etc/passwd", "leads out of the tree"),
        ("loop.py", "loop.py", "leads in circles"),
        ("through.py", "folder/../../../outside.py", "leads out of the tree"),
    ],
    ids=["above", "absolute", "loop", "through a folder"],
)
def test_a_link_that_leads_out_or_nowhere_is_refused_by_name(tree, name, target, found):
    (tree / "kernels/folder").mkdir()
    (tree / "kernels" / name).symlink_to(target)
    with pytest.raises(CodeShipError, match=name) as error:
        pack(tree)
    assert found in error.value.found


def test_a_link_to_a_folder_outside_is_refused(tree):
    (tree / "kernels/all").symlink_to("../..")
    with pytest.raises(CodeShipError, match="leads out of the tree"):
        pack(tree)


def test_a_pipe_and_a_newline_in_a_name_are_refused(tree):
    os.mkfifo(tree / "pipe")
    with pytest.raises(CodeShipError, match="no plain file"):
        pack(tree)
    (tree / "pipe").unlink()
    (tree / "two\nlines.py").write_text("")
    with pytest.raises(CodeShipError, match="control character"):
        pack(tree)


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "a/../../out.py"])
def test_an_entry_that_leads_out_is_refused_though_its_digest_is_right(tmp_path, name):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    data = stream.getvalue()
    with pytest.raises(CodeShipError, match="leads out of the tree"):
        unpack(data, digest(data), tmp_path / "node")


def test_the_engine_has_a_digest_of_its_own():
    assert 64 == len(engine_digest())
