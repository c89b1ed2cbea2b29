"""The program where its surroundings are hostile: streams, folders and Ctrl-C at its beginning."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cli_support import environment
from nightly_cases import first_and_nightly

from flstream.cli.output import StandardStream
from flstream.cli.run import interrupt
from flstream.cli.run import run as cli_run
from flstream.errors import CheckpointError

PROGRAM = [sys.executable, "-m", "flstream"]


def run(*arguments, cwd=None, **more):
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=more.pop("env", environment()),
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        **more,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.nightly
def test_output_on_a_full_disk_fails_a_command_that_only_prints(write_job):
    job = write_job()
    with open("/dev/full", "w") as full:
        for command in (["validate", job], ["validate", "--json", job], ["--help"]):
            done = run(*command, stdout=full)
            assert done.returncode == 1
            assert done.stderr == (
                "error: what is printed cannot be written: No space left on device\n"
            )


@pytest.mark.nightly
def test_a_run_whose_output_is_lost_has_succeeded(write_job, tmp_path):
    with open("/dev/full", "w") as full:
        done = run("simulate", write_job(), "--run-dir", tmp_path / "run", stdout=full)
    assert done.returncode == 0
    assert done.stderr.endswith("cannot be written: No space left on device\n")
    assert '"status": "finished"' in (tmp_path / "run" / "summary.json").read_text()


def test_a_run_needs_no_standard_streams(write_job, tmp_path):
    command = " ".join([*PROGRAM, "simulate", str(write_job()), "--run-dir", "run"])
    done = subprocess.run(
        ["sh", "-c", f"{command} <&- >&- 2>&-"], cwd=tmp_path, env=environment(), timeout=120
    )
    assert done.returncode == 0
    assert '"status": "finished"' in (tmp_path / "run" / "summary.json").read_text()


@pytest.mark.parametrize("words", [("simulate", "no-such-job.conf"), ("simulate",)])
def test_an_error_that_cannot_be_written_leaves_the_status(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PROGRAM, *words], env=environment(), stderr=full, timeout=120)
    assert done.returncode == 2


def test_no_error_goes_to_stdout_in_the_place_of_a_closed_stderr():
    command = " ".join([*PROGRAM, "simulate", "no-such-job.conf"])
    done = subprocess.run(
        ["sh", "-c", f"{command} 2>&-"], env=environment(), stdout=subprocess.PIPE, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_reader_that_has_gone_leaves_the_status():
    readable, writable = os.pipe()
    os.close(readable)
    with open(writable, "w") as output:
        for command in (["--help"], ["--version"], ["init", "--list"]):
            done = run(*command, stdout=output)
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["validate", "simulate"])
def test_a_temporary_folder_with_a_long_path_is_named(write_job, tmp_path, command):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    done = run(command, write_job(), cwd=tmp_path, env={**environment(), "TMPDIR": str(folder)})
    assert done.returncode == 2
    assert f"the temporary folder {folder} has too long a path for a socket" in done.stderr
    assert "set TMPDIR to a shorter one" in done.stderr
    assert not (tmp_path / "runs").exists()


@first_and_nightly("command", ["validate", "simulate"])
def test_ctrl_c_at_any_time_is_no_traceback(write_job, tmp_path, command):
    job = write_job()
    for delay in (0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7):
        process = subprocess.Popen(
            [*PROGRAM, command, str(job)],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        _when_it_runs_flstream(process.pid)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors
        assert process.returncode in (130, -signal.SIGINT)


@pytest.fixture
def uninterrupted(monkeypatch):
    """Leave the state that a Ctrl-C changes as it was."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr("flstream.cli.run._interrupted", threading.Event())


@pytest.mark.usefixtures("uninterrupted")
@pytest.mark.parametrize("kind", [ValueError, CheckpointError, KeyboardInterrupt])
def test_ctrl_c_in_the_place_of_which_a_library_raises_something_ends_with_130(
    monkeypatch, capsys, kind
):
    def app(prog_name):
        try:
            interrupt(signal.SIGINT, None)
        except KeyboardInterrupt as error:
            raise kind("a schema cannot be built: KeyboardInterrupt") from error

    monkeypatch.setattr("flstream.cli.run.app", app)
    assert cli_run(StandardStream(1)) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("uninterrupted")
def test_what_no_ctrl_c_has_caused_is_raised(monkeypatch):
    def app(prog_name):
        raise ValueError("a defect")

    monkeypatch.setattr("flstream.cli.run.app", app)
    with pytest.raises(ValueError, match="a defect"):
        cli_run(StandardStream(1))


@pytest.mark.usefixtures("uninterrupted")
def test_ctrl_c_that_a_destructor_swallows_comes_again(capsys):
    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    class HalfMade:
        def __del__(self):
            raise AttributeError("expr")

    def work():
        Interrupted()
        HalfMade()
        time.sleep(10)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "")


def _when_it_runs_flstream(pid):
    """Wait until Python's own handler of Ctrl-C, which it has from its start, is there no more.

    That lasts as long as the imports, which a busy machine may not let this process see.
    """
    had, until = False, time.monotonic() + 2
    while time.monotonic() < until:
        status = Path(f"/proc/{pid}/status").read_text()
        if "SigCgt:" not in status:  # it has ended
            return
        caught = int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGINT - 1) & 1
        if had and not caught:
            return
        had = had or bool(caught)
        time.sleep(0.001)


def test_a_killed_launcher_leaves_no_temporary_folder(write_job, tmp_path):
    temporary = tmp_path / "t"
    temporary.mkdir()
    process = subprocess.Popen(
        [*PROGRAM, "simulate", str(write_job()), "--set", "rounds=1000"],
        cwd=tmp_path,
        env={**environment(), "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _until(lambda: list(tmp_path.glob("runs/*/events.jsonl")))
    assert any(temporary.iterdir())
    process.kill()
    process.wait()
    _until(lambda: not any(temporary.glob("pymp-*")))


def _until(holds, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Nobody can make a folder there, not even root.
UNWRITABLE = "/proc"


def test_a_bench_needs_a_folder_that_can_be_written(write_job):
    done = run("bench", "--model-size", "1MB", cwd=UNWRITABLE, stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert "the folder /proc/runs cannot be written" in done.stderr


@pytest.mark.nightly
def test_a_run_fits_into_no_folder_that_cannot_be_written(write_job, tmp_path):
    (tmp_path / "file").touch()
    job = write_job()
    for folder in (Path(UNWRITABLE) / "run", tmp_path / "file" / "run"):
        done = run("validate", job, "--run-dir", folder, stdout=subprocess.PIPE)
        assert done.returncode == 1
        assert f"{folder} cannot be written: " in " ".join(done.stdout.split())
        done = run("simulate", job, "--run-dir", folder, stdout=subprocess.PIPE)
        assert done.returncode == 2
        assert "cannot be made" in done.stderr
