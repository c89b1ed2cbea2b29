"""What holds for every command: help, versions, mistakes, imports, completion in a shell."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import PROGRAM, Flstream, environment, python

import flstream as package
from flstream.cli.init import TEMPLATES

COMMANDS = ("simulate", "bench", "inspect", "init", "validate", "report")


def test_help_lists_the_commands_within_80_columns(flstream: Flstream) -> None:
    done = flstream("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert flstream("--version").stdout == f"flstream {package.__version__}\n"


HEAVY = {
    "flstream.cli.app": {"torch", "numpy", "pydantic", "pyhocon", "psutil", "matplotlib", "jinja2"},
    "flstream.report.charts.style": {"matplotlib.pyplot"},
    "flstream.inspection.examine, flstream.report.checkpoint": {"torch", "pydantic", "pyhocon"},
}


@pytest.mark.parametrize("modules", HEAVY)
def test_nothing_is_imported_that_takes_long_and_is_not_needed(modules: str) -> None:
    found = python(f"import sys, {modules}; print({HEAVY[modules]!r} & sys.modules.keys())")
    assert found == "set()"


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "job.conf", "--bogus"),
        ("simulate",),
        ("simulate", "no-such-job.conf"),
        ("simulate", "."),
        ("inspect", "no-such-file"),
        ("bench",),
        ("no-such-command",),
    ],
)
def test_a_wrong_request_exits_2_with_a_message_and_no_traceback(
    flstream_here: Flstream, words: tuple[str, ...]
) -> None:
    done = flstream_here(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def complete(words: str, folder: Path) -> list[str]:
    """What the program offers for the last of these words."""
    variables = {
        "_FLSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        PROGRAM, cwd=folder, env=environment(**variables), capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_program_says_what_a_word_may_become(tmp_path: Path) -> None:
    (tmp_path / "job.conf").touch()
    assert complete("flstream init new --template ", tmp_path) == list(TEMPLATES)
    assert complete("flstream simulate job.conf --run", tmp_path) == ["--run-dir"]
    # Nothing, so that the shell offers files.
    assert complete("flstream simulate jo", tmp_path) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script_and_completes_with_it(tmp_path: Path) -> None:
    command = tmp_path / "flstream"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flstream "$@"\n')
    command.chmod(0o755)
    program = (
        f'PATH="{tmp_path}:$PATH"\n'
        'eval "$(_FLSTREAM_COMPLETE=source_bash flstream)"\n'
        "COMP_WORDS=(flstream init new --template le) COMP_CWORD=4\n"
        "_flstream_completion flstream\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    words = ["bash", "--norc", "-c", program]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "learner\n")
