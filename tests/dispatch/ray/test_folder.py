"""The folder of a run on a node: shared while somebody is in it, gone afterwards, swept when its workers were killed."""

import subprocess
import sys
import time

from harness.dispatch.ray.folder import NodeFolder


def test_the_last_one_out_removes_it(tmp_path):
    first, second = NodeFolder("run", "node", tmp_path), NodeFolder("run", "node", tmp_path)
    assert first.path == second.path
    first.close()
    assert second.path.is_dir()
    second.close()
    assert [] == list(tmp_path.iterdir())


def test_two_nodes_of_one_host_do_not_share(tmp_path):
    folders = [NodeFolder("run", node, tmp_path) for node in ("one", "two")]
    assert 2 == len({folder.path for folder in folders})
    for folder in folders:
        folder.close()


def test_read_only_code_goes_with_it(tmp_path):
    folder = NodeFolder("run", "node", tmp_path)
    code = folder.path / "code"
    code.mkdir()
    (code / "file").touch(mode=0o444)
    code.chmod(0o555)
    folder.close()
    assert not folder.path.exists()


def test_what_a_killed_worker_left_is_swept_by_the_next(tmp_path):
    script = (
        "import sys, time, pathlib; from harness.dispatch.ray.folder import NodeFolder; "
        "f = NodeFolder('old', 'node', pathlib.Path(sys.argv[1])); print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert b"in\n" == process.stdout.readline()
        held = NodeFolder("new", "node", tmp_path)
        assert (tmp_path / "old@node").is_dir()
        held.close()
        process.kill()
    time.sleep(0.05)
    NodeFolder("new", "node", tmp_path).close()
    assert [] == list(tmp_path.iterdir())
