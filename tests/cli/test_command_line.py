"""What holds for every command: help, versions, mistakes, closed pipes."""

import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import Flstream, environment

import flstream as package


def test_help_lists_the_commands_within_80_columns(flstream: Flstream) -> None:
    done = flstream("--help")
    assert done.returncode == 0
    assert "simulate" in done.stdout
    assert "inspect" in done.stdout
    assert "bench" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pydantic", "pyhocon", "psutil", "msgspec"}
    program = f"import sys, flstream.cli.app; print({heavy!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_the_version_is_printed(flstream: Flstream) -> None:
    assert flstream("--version").stdout == f"flstream {package.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "job.conf", "--bogus"),
        ("simulate",),
        ("simulate", "no-such-job.conf"),
        ("simulate", "."),
        ("inspect", "no-such-file"),
        ("no-such-command",),
    ],
)
def test_a_wrong_request_exits_2_with_a_message_and_no_traceback(
    flstream: Flstream, words: tuple[str, ...]
) -> None:
    done = flstream(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--json", "--help"])
def test_a_reader_that_goes_away_gets_no_traceback(tmp_path: Path, option: str) -> None:
    header = b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    process = subprocess.Popen(
        [sys.executable, "-m", "flstream", "inspect", "m.safetensors", option],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()  # long before it has finished its imports
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=60)
