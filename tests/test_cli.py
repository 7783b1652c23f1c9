"""Every verb's help: quick, with an example, and without what only the verb itself needs."""

import os
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


def of_verb(body, redirect="", *, closed_pipe=False):
    """Run a verb that is `body` through a shell; a reader that leaves before a line was written, where `closed_pipe`."""
    code = f"""
import sys, click
from harness import cli
@click.command()
def command():
    {body}
cli.Verbs.get_command = lambda *_: command
sys.argv = ["harness", "verb"]
cli.run()
"""
    read, write = os.pipe()
    os.close(read)
    shell = ["sh", "-c", f'exec "$0" -c "$1" {redirect}', sys.executable, code]
    try:
        stdout = write if closed_pipe else subprocess.PIPE
        return subprocess.run(shell, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    finally:
        os.close(write)


SAYS = "[click.echo('word ' * 9999) for _ in range(9)]; return {status}"


@pytest.mark.parametrize("status", [0, 1, 3])
@pytest.mark.parametrize("redirect", ["", ">&-", "2>&1", "<&- >&- 2>&-"])
def test_a_verb_that_nobody_reads_keeps_its_exit_code_and_says_nothing(redirect, status):
    done = of_verb(SAYS.format(status=status), redirect, closed_pipe=True)
    assert (status, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize(("status", "ends"), [(0, 3), (1, 1), (3, 3)])
def test_a_verb_whose_output_meets_a_full_disk_says_so_and_is_no_pass(status, ends):
    done = of_verb(SAYS.format(status=status), ">/dev/full")
    assert ends == done.returncode
    assert done.stderr == (
        "harness: asked: harness verb\nfound: its output cannot be written: No space left on device\n"
        "do next: make room where its output goes, or send it elsewhere, and repeat\n"
    )


def test_a_child_of_a_verb_without_stdout_has_one_that_goes_nowhere():
    done = of_verb("import subprocess; return subprocess.run(['sh', '-c', 'echo said'], check=False).returncode", ">&-")
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("args", "found", "do"),
    [
        (("runs", "--frmat", "json"), "no option --frmat", "use --format; `harness runs --help` says what it takes"),
        (("runs", "--format", "xml"), "invalid value for '--format': 'xml' is not one of 'text', 'json'", "`harness runs --help` says"),
        (("runs", "--format"), "option '--format' requires an argument", "`harness runs --help` says what it takes"),
        (("runs", "--limit", "0"), "invalid value for '--limit': 0 is not in the range x>=1", "`harness runs --help` says what it takes"),
        (("diff",), "missing argument 'A..B'", "`harness diff --help` says what it takes"),
        (("kernels", "show", "a b", "c"), "got unexpected extra argument (c)", "`harness kernels show --help` says what it takes"),
        (("check",), "neither a range nor --from", "give a range A..B, or --from FILE"),
        (("fleet",), "no --address", "give --address HOST:PORT; "),
        (("submit", "--max-queue", "3"), "it belongs to --dispatcher ray", "add that, or leave --max-queue out"),
    ],
    ids=" ".join,
)
def test_what_is_misused_is_an_error_of_three_parts(args, found, do):
    done = subprocess.run([sys.executable, "-m", "harness", *args], capture_output=True, text=True, check=False)
    assert (2, "") == (done.returncode, done.stdout)
    asked, *rest = done.stderr.splitlines()
    assert asked.startswith("harness: asked: ")
    assert [f"found: {found}", True] == [rest[0], rest[1].startswith(f"do next: {do}")]


def test_the_command_that_was_asked_for_is_printed_as_a_shell_takes_it():
    done = subprocess.run([sys.executable, "-m", "harness", "kernels", "show", "a b", "c"], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("harness: asked: harness kernels show 'a b' c\n")
