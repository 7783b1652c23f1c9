import pytest

from harness.authoring.workspace import bundled_jobs, find_workspace
from harness.errors import WorkspaceError


def write(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_table_wins(tmp_path):
    write(tmp_path, "[tool.harness]\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path / "a", "[project]\n")
    assert find_workspace(inner).root == tmp_path


def test_a_workspace_without_jobs_gets_the_engines(tmp_path):
    assert find_workspace(write(tmp_path, "[tool.harness]\n")).jobs_dir == bundled_jobs()


def test_a_workspace_with_jobs_keeps_its_own(tmp_path):
    (tmp_path / "jobs").mkdir()
    assert find_workspace(write(tmp_path, "[tool.harness]\n")).jobs_dir == tmp_path / "jobs"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.harness\n", "bad TOML"),
        ("[tool.harness]\nsourcs = []\n", "unknown key 'sourcs'"),
        ("[tool.harness]\napi = 99\n", "authoring API 1 to 1"),
        ('[tool.harness]\nsources = "src"\n', "list of paths"),
        ('[tool.harness]\nsources = ["absent"]\n', "existing path"),
        ('[tool.harness]\nsources = ["../elsewhere"]\n', "inside the workspace"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, text, message):
    (tmp_path.parent / "elsewhere").mkdir(exist_ok=True)
    with pytest.raises(WorkspaceError, match=message):
        find_workspace(write(tmp_path, text))


def test_no_workspace_says_what_to_add(tmp_path):
    with pytest.raises(WorkspaceError, match=r"\[tool.harness\] table"):
        find_workspace(tmp_path)
