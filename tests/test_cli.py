"""Every verb's help: quick, with an example, and without what only the verb itself needs."""

import subprocess
import sys
from pathlib import Path

import pytest

import harness.commands
from harness.cli import group

VERBS = sorted(f.stem for f in Path(harness.commands.__file__).parent.glob("*.py") if not f.stem.startswith("_"))
HEAVY = {"torch", "triton", "ray", "pyarrow", "scipy", "numpy", "rich", "github", "jinja2"}


def loaded_by(*args):
    """Run `harness ARGS` in a fresh process and give its output and the modules it imported."""
    code = f"""
import sys
sys.argv = ["harness", *{args!r}]
from harness.cli import main
try:
    main()
except SystemExit:
    print("\\nMODULES", *sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    text, _, modules = out.rpartition("\nMODULES ")
    return text, {name.partition(".")[0] for name in modules.split()}


@pytest.mark.parametrize("args", [(), *[(verb,) for verb in VERBS]], ids=["harness", *VERBS])
def test_help_imports_nothing_heavy(args):
    text, modules = loaded_by(*args, "--help")
    assert "Usage:" in text
    assert modules & HEAVY == set()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb):
    command = group.get_command(None, verb)
    assert command.help
    leaves = command.commands.values() if hasattr(command, "commands") else [command]
    assert all("Example" in (leaf.epilog or "") for leaf in leaves)


def test_the_verbs_are_found_by_scanning():
    assert group.list_commands(None) == VERBS


@pytest.mark.parametrize(
    ("args", "asked", "known", "do"),
    [
        (("sumbit",), "verb 'sumbit'", VERBS, "use 'submit'; `harness --help` says what each does"),
        (("xyzzy",), "verb 'xyzzy'", VERBS, "choose one of those named above; `harness --help` says what each does"),
        (
            ("baseline", "acept", "last"),
            "verb of baseline 'acept'",
            ["accept", "list"],
            "use 'accept'; `harness baseline --help` says what each does",
        ),
    ],
    ids=["like one", "like none", "of a verb"],
)
def test_an_unknown_verb_is_a_usage_error_that_names_those_known(args, asked, known, do):
    done = subprocess.run([sys.executable, "-m", "harness", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"harness: asked: {asked}\nfound: known: {', '.join(known)}\ndo next: {do}\n"


def test_an_unknown_option_is_a_usage_error():
    done = subprocess.run([sys.executable, "-m", "harness", "--sumbit"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--sumbit" in done.stderr


@pytest.mark.parametrize(("before", "status"), [("signal.SIG_DFL", 130), ("signal.SIG_IGN", 0)], ids=["at a terminal", "under nohup"])
def test_a_terminal_that_closes_stops_a_command_unless_it_is_told_to_go_on(before, status):
    code = f"""
import os, signal
from harness import cli
signal.signal(signal.SIGHUP, {before})
cli.group.main = lambda **_: os.kill(os.getpid(), signal.SIGHUP)
cli.main()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == status


@pytest.mark.parametrize("status", [0, 1, 130])
def test_a_command_ends_with_its_exit_code_though_a_library_aborts_when_it_is_taken_down(status):
    code = f"""
import atexit, ctypes
from harness import cli
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
def command(**_):
    atexit.register(print, "left as ever", end="")
    return {status}
cli.group.main = command
cli.run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (status, "left as ever") == (done.returncode, done.stdout)
