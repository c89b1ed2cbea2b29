"""The program where its surroundings are hostile: streams, folders and Ctrl-C at its beginning."""

import _thread
import os
import resource
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest
from cli_support import PROGRAM, environment, started

from flstream.cli.output import StandardStream
from flstream.cli.run import interrupt
from flstream.cli.run import run as cli_run
from flstream.errors import CheckpointError


def shell(redirected, *words):
    """Run the program with its streams closed or sent elsewhere, and return status and output."""
    command = " ".join([*PROGRAM, *map(str, words), redirected])
    words = ["sh", "-c", command]
    done = subprocess.run(words, env=environment(), capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_output_on_a_full_disk_fails_a_command_that_only_prints():
    status, _, errors = shell(">/dev/full", "--help")
    assert status == 1
    assert errors == "error: what is printed cannot be written: No space left on device\n"


@pytest.mark.nightly
def test_a_run_whose_output_is_lost_has_succeeded(write_job, tmp_path):
    for number, streams in enumerate((">/dev/full", "<&- >&- 2>&-")):
        job = tmp_path / "job" / "job.conf" if number else write_job()
        run = tmp_path / f"run-{number}"
        status, _, errors = shell(streams, "simulate", job, "--run-dir", run)
        assert status == 0
        assert number or errors.endswith("cannot be written: No space left on device\n")
        assert '"status": "finished"' in (run / "summary.json").read_text()


@pytest.mark.parametrize("streams", ["2>/dev/full", "<&- >&- 2>&-"])
def test_an_error_that_cannot_be_written_leaves_the_status_and_goes_nowhere_else(streams):
    assert shell(streams, "inspect", "no-such-file") == (2, "", "")


def test_a_reader_that_has_gone_leaves_the_status(tmp_path):
    header = b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    readable, writable = os.pipe()
    os.close(readable)
    with open(writable, "w") as output:
        for words in (["--help"], ["inspect", "m.safetensors", "--json"]):
            process = started(*words, stdout=output, cwd=tmp_path)
            assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)


@pytest.fixture
def _uninterrupted(monkeypatch):
    """Leave the state that a Ctrl-C changes as it was."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr("flstream.cli.run._interrupted", threading.Event())


@pytest.mark.usefixtures("_uninterrupted")
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
    # What no Ctrl-C has caused is raised.
    monkeypatch.setattr("flstream.cli.run._interrupted", threading.Event())
    monkeypatch.setattr("flstream.cli.run.app", lambda prog_name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli_run(StandardStream(1))


@pytest.mark.usefixtures("_uninterrupted")
@pytest.mark.parametrize("lost", [1, 2])
def test_ctrl_c_that_a_destructor_swallows_comes_again(monkeypatch, capsys, lost):
    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    class HalfMade:
        def __del__(self):
            raise AttributeError("expr")

    def start(target, args):
        sent.append(None)
        if len(sent) < lost:  # it comes before the hook of the one before has ended
            signal.raise_signal(signal.SIGINT)
        else:
            begin(target, args)

    sent, begin = [], _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", start)

    def work():
        Interrupted()
        HalfMade()
        threading.Event().wait(60)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "")
    assert len(sent) == lost


def test_a_working_directory_that_was_removed_is_a_sentence(tmp_path):
    folder = tmp_path / "removed"
    folder.mkdir()
    process = started("report", "run", cwd=folder, preexec_fn=folder.rmdir)
    assert "the working directory was removed" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


@pytest.mark.nightly
def test_too_few_descriptors_are_a_sentence(write_job, tmp_path):
    words = ("simulate", write_job(), "-n", "16", "-q")
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (48, 48))
    process = started(*words, cwd=tmp_path, preexec_fn=limit)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "raise the limit (ulimit -n)" in errors


def test_a_folder_that_cannot_be_written_is_named(flstream_here, refused, write_job, tmp_path):
    (tmp_path / "file").touch()
    job, folder = write_job(), tmp_path / "file" / "run"
    assert "cannot be made" in refused("simulate", job, "--run-dir", folder, "--engine", "inline")
    done = flstream_here("validate", job, "--run-dir", folder)
    assert done.returncode == 1
    assert f"{folder} cannot be written: " in " ".join(done.stdout.split())
