"""What goes wrong in a job ends it with a sentence, and leaves no process behind."""

import os
import signal

import pytest

from flstream.errors import UsageError
from flstream.simulator.run_directory import RunDirectory
from flstream.telemetry.events import ProcessReady, RoundFinished, SiteState

HEADER = """
import time
import torch
import flstream.client as flare

flare.init()
site = flare.get_site_name()
"""


def script(body):
    """A script that does what ``body`` says where it trains, on site 2 alone."""
    return (
        HEADER
        + """
while flare.is_running():
    model = flare.receive()
    params = model.params
    if flare.is_train() and site == "site-2" and model.current_round == 1:
        pass
"""
        + "\n".join(f"        {line}" for line in body.splitlines())
        + """
    flare.send(flare.FLModel(params=params))
"""
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('oops')", ["site-2", "client.py, line 14", "KeyError: 'oops'", "log.txt"]),
        ("raise SystemExit(4)", ["site-2", "client.py exited with status 4"]),
        ("break", ["site-2", "client.py ended before the run did"]),
        ("params.pop('w')", ["site-2", "'w' is missing"]),
        ("params['b'] = params['b'].T", ["site-2", "'b' has shape [5, 3] instead of [3, 5]"]),
        ("params['b'] = params['b'].half()", ["site-2", "'b' has dtype F16 instead of F64"]),
        ("params['new'] = torch.ones(1)", ["site-2", "'new' is not part of the model"]),
        ("params['w'] = 'text'", ["site-2", "'w' is a str"]),
        ("params['w'] = params['w'].to_sparse()", ["site-2", "'w'", "dense"]),
        ("params = None", ["site-2", "has no params"]),
        ("flare.receive()", ["site-2", "received before"]),
        ("import os; os.kill(os.getpid(), 9)", ["site-2 was killed by SIGKILL"]),
    ],
)
def test_a_site_that_fails_ends_the_job_with_its_name_and_reason(jobs, body, words):
    run = jobs.run(script(body), "workflow.args.evaluate_every=0", "rounds=3")
    assert run.summary.status == "failed"
    for word in words:
        assert word in run.summary.error
    assert run.summary.rounds_completed == 1
    kept = sorted(path.name for path in run.directory.checkpoints.iterdir())
    assert kept == ["round-0000.safetensors", "round-0001.safetensors"]
    assert not run.directory.final_model.exists()


def test_a_script_that_fails_right_after_init_is_quoted(jobs):
    run = jobs.run(HEADER + "raise KeyError('early')")
    assert run.summary.status == "failed"
    assert "client.py, line 8 raised KeyError: 'early'" in run.summary.error


def test_a_script_that_never_calls_init_is_named(jobs):
    run = jobs.run("print('I do something else')")
    assert run.summary.status == "failed"
    assert "client.py ended before the run did" in run.summary.error


def test_a_script_that_fails_after_its_last_task_does_not_fail_the_run(jobs, noise):
    run = jobs.run(noise + "\nraise RuntimeError('while tidying up')")
    assert run.summary.status == "finished"
    assert run.directory.final_model.exists()
    assert "while tidying up" in run.directory.site_log("site-1").read_text()


def test_a_site_that_does_not_answer_in_time_is_named(jobs):
    stuck = script("import threading; threading.Event().wait()")
    run = jobs.run(stuck, "clients.round_timeout=3 s", "workflow.args.evaluate_every=0")
    assert run.summary.status == "failed"
    assert "site-2 did not answer" in run.summary.error
    assert "round_timeout" in run.summary.error


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("def build():\n    return 1 / 0", ["ZeroDivisionError", "line 2"]),
        ("def build():\n    return 7", ["returned a int"]),
        ("def build():\n    return {'w': 'text'}", ["'w' is a str"]),
        ("import os\ndef build():\n    os.kill(os.getpid(), 9)", ["model-builder was killed"]),
    ],
)
def test_a_model_that_cannot_be_built_ends_the_job(jobs, noise, model, words):
    run = jobs.run(noise, model=model)
    assert run.summary.status == "failed"
    for word in words:
        assert word in run.summary.error
    assert run.summary.rounds_completed == 0


def test_a_killed_server_is_reported_and_its_sites_end(jobs, noise):
    def kill_server(event, sampler):
        if isinstance(event, ProcessReady) and event.process == "server":
            kill_server.pid = event.pid
        if isinstance(event, RoundFinished):
            os.kill(kill_server.pid, signal.SIGKILL)

    run = jobs.run(noise, "rounds=50", listener=kill_server)
    assert run.summary.status == "failed"
    assert "server was killed by SIGKILL" in run.summary.error
    assert run.summary.rounds_completed >= 1


def test_ctrl_c_stops_the_run_and_keeps_the_last_round(jobs):
    slow = script("import threading; threading.Event().wait()")

    def interrupt(event, sampler):
        if isinstance(event, SiteState) and event.round == 2 and event.state == "training":
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    run = jobs.run(slow, "workflow.args.evaluate_every=0", listener=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert run.summary.status == "stopped"
    assert run.summary.rounds_completed == 1
    assert run.directory.checkpoint(1).exists()
    assert run.directory.summary.exists()


def test_a_run_directory_with_something_in_it_is_refused_and_left_alone(tmp_path):
    mine = tmp_path / "run" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        RunDirectory.create("job", tmp_path / "run")
    assert mine.read_text() == "precious"
