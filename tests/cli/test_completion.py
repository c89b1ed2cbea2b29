"""A shell completes commands, options and their values."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import environment

from flstream.cli.init import TEMPLATES


def complete(words: str, folder: Path) -> list[str]:
    """What the program offers for the last of these words."""
    given = words.split(" ")
    variables = {
        "_FLSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(given) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "flstream"],
        cwd=folder,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("flstream va", ["validate"]),
        ("flstream init new --template ", list(TEMPLATES)),
        ("flstream init new --template e", ["exchange"]),
        ("flstream inspect --sort ", ["file", "size", "name"]),
        ("flstream simulate job.conf --run", ["--run-dir"]),
        # Nothing, so that the shell offers files.
        ("flstream simulate jo", []),
    ],
)
def test_the_program_says_what_a_word_may_become(
    tmp_path: Path, words: str, offered: list[str]
) -> None:
    (tmp_path / "job.conf").touch()
    assert complete(words, tmp_path) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script_and_completes_with_it(tmp_path: Path) -> None:
    command = tmp_path / "flstream"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flstream "$@"\n')
    command.chmod(0o755)
    program = (
        f'PATH="{tmp_path}:$PATH"\n'
        'eval "$(_FLSTREAM_COMPLETE=source_bash flstream)"\n'
        "complete -p flstream\n"
        "COMP_WORDS=(flstream init new --template le) COMP_CWORD=4\n"
        "_flstream_completion flstream\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -F _flstream_completion flstream",
        "learner",
    ]
