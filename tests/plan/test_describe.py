"""How a workspace's description comes back from the process that reads it: on a channel of its own."""

import json
import subprocess
import sys
import time

import pytest

from harness import Traffic
from harness.authoring.workspace import find_workspace
from harness.errors import WorkspaceError
from harness.plan.describe import describe


@pytest.mark.parametrize(
    "code",
    [
        "print('loading', end='')",
        "import atexit; atexit.register(print, 'bye')",
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout.write('x' * 300_000); sys.stderr.write('y' * 300_000)",
    ],
    ids=["prints half a line", "prints at exit", "closes its output", "prints more than a pipe holds"],
)
def test_what_a_kernel_file_prints_is_not_the_answer(repository, code):
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", text.replace("import torch\n", f"import torch\n{code}\n", 1))
    assert [k.name for k in describe(find_workspace(repository.root)).kernels] == ["scale"]


def test_a_process_that_a_kernel_file_leaves_behind_is_not_waited_for(repository):
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", text.replace("import torch\n", "import os\nimport torch\nos.system('sleep 120 &')\n", 1))
    start = time.monotonic()
    describe(find_workspace(repository.root))
    assert time.monotonic() - start < 90


def test_an_answer_longer_than_a_pipe_is_whole(repository):
    text = (repository.root / "kernels/scale.py").read_text()
    repository.write("kernels/scale.py", '"""' + "long " * 40_000 + '"""\n' + text)
    (kernel,) = describe(find_workspace(repository.root)).kernels
    assert len(kernel.doc) == 200_000


def test_a_file_that_ends_the_process_is_quoted(repository):
    repository.write("kernels/bad.py", "import os\nos.write(1, b'out')\nos.write(2, b'no such \\xff')\nos._exit(7)\n")
    with pytest.raises(WorkspaceError, match="ended with status 7: no such \ufffd"):
        describe(find_workspace(repository.root))


def test_a_variant_that_does_a_part_of_the_work_has_its_own_bytes_in_every_case(repository):
    text = (repository.root / "kernels/scale.py").read_text()
    own = "Variant(twice, triton=False, traffic=lambda case: Traffic(case.N, 0))"
    repository.write("kernels/scale.py", text.replace("Variant(twice, triton=False)", own, 1))
    ((first, *_),) = [kernel.cases for kernel in describe(find_workspace(repository.root)).kernels]
    assert {"double": Traffic(32, 32), "twice": Traffic(8, 0)} == {name: first.traffic_of(name) for name in ("double", "twice")}


def test_by_hand_it_prints_the_description(repository):
    command = [sys.executable, "-m", "harness.plan.describe", str(repository.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [kernel["name"] for kernel in json.loads(done.stdout)["kernels"]] == ["scale"]
