"""What goes wrong in a job ends it with a sentence, and leaves no process behind."""

import os
import signal

import pytest
from nightly_cases import first_and_nightly

from flstream.errors import UsageError
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import ProcessReady, RoundFinished, SitePhaseChanged, decode_event

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


def sending(answer, body="pass"):
    """A script that does what ``body`` says with each model, and answers every task alike."""
    return f"""{HEADER}
while flare.is_running():
    model = flare.receive()
    {body}
    flare.send(flare.FLModel({answer}))
"""


@first_and_nightly(
    ("body", "words"),
    [
        ("raise KeyError('oops')", ["site-2", "client.py, line 14", "KeyError: 'oops'", "log.txt"]),
        ("raise SystemExit(4)", ["site-2", "client.py exited with status 4"]),
        ("break", ["site-2", "ended without answering"]),
        ("params.pop('w')", ["site-2", "'w' is missing"]),
        ("params['b'] = params['b'].T", ["site-2", "'b' has shape [5, 3] instead of [3, 5]"]),
        ("params['b'] = params['b'].half()", ["site-2", "'b' has dtype F16 instead of F64"]),
        ("params['new'] = torch.ones(1)", ["site-2", "'new' is not part of the model"]),
        ("params['w'] = 'text'", ["site-2", "'w' is a str"]),
        ("params['w'] = params['w'].to_sparse()", ["site-2", "'w'", "dense"]),
        ("params = None", ["site-2", "has no params"]),
        ("import os; os.kill(os.getpid(), 9)", ["site-2 was killed by SIGKILL"]),
    ],
    brief=5,
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


@pytest.mark.parametrize(
    ("end", "reason", "signal", "status"),
    [
        ("os.kill(os.getpid(), 9)", "site-2 was killed by SIGKILL", "SIGKILL", None),
        ("os._exit(3)", "site-2 exited with status 3", "", 3),
        ("raise SystemExit(4)", "client.py exited with status 4", "", 4),
        ("raise SystemExit('enough')", "client.py ended itself: enough", "", 1),
        ("raise KeyError('oops')", "client.py, line 14 raised KeyError: 'oops'", "", None),
    ],
)
def test_how_the_process_of_a_site_has_ended_is_told(jobs, end, reason, signal, status):
    run = jobs.run(
        script(f"import os; {end}"), "workflow.args.evaluate_every=0", "clients.min_updates=1"
    )
    assert run.summary.status == "finished", run.summary.error
    failure = run.summary.failures[0]
    assert (failure.site, failure.reason) == ("site-2", reason)
    assert (failure.signal, failure.exit_status) == (signal, status)


def test_a_script_that_fails_right_after_init_is_quoted(jobs):
    run = jobs.run(HEADER + "raise KeyError('early')")
    assert run.summary.status == "failed"
    assert "client.py, line 8 raised KeyError: 'early'" in run.summary.error


def test_a_script_that_never_calls_init_is_named(jobs):
    run = jobs.run("print('I do something else')")
    assert run.summary.status == "failed"
    assert "its script ended before the run did" in run.summary.error


def test_a_script_that_fails_after_its_last_task_does_not_fail_the_run(jobs, noise):
    run = jobs.run(noise + "\nraise RuntimeError('while tidying up')")
    assert run.summary.status == "finished"
    assert run.directory.final_model.exists()
    assert "while tidying up" in run.directory.site_log("site-1").read_text()


def test_a_loop_over_the_rounds_in_place_of_is_running_is_a_finished_run(jobs):
    script = (
        HEADER
        + """
for _ in range(2):
    model = flare.receive()
    flare.send(flare.FLModel(params=model.params))
"""
    )
    run = jobs.run(script, "workflow.args.evaluate_every=0")
    assert run.summary.status == "finished", run.summary.error


@pytest.mark.nightly
@pytest.mark.parametrize("link", [[], ["network.latency=5 ms"]], ids=["", "emulated link"])
def test_a_site_whose_forked_child_lives_on_is_seen_to_die(jobs_of_their_own, link):
    forking = script(
        "import os\n"
        "if os.fork() == 0:\n"
        "    time.sleep(20)\n"
        "    os._exit(0)\n"
        "os.kill(os.getpid(), 9)"
    )
    run = jobs_of_their_own.run(
        forking, "clients.round_timeout=15 s", "workflow.args.evaluate_every=0", *link
    )
    assert run.summary.status == "failed"
    assert "site-2 was killed by SIGKILL" in run.summary.error
    assert "did not" not in run.summary.error


def test_a_script_that_fails_while_the_model_is_built_is_heard_at_once(jobs):
    model = "import threading\ndef build():\n    threading.Event().wait()"
    run = jobs.run("raise KeyError('first line')", model=model)
    assert run.summary.status == "failed"
    assert "KeyError: 'first line'" in run.summary.error


def test_what_factories_print_goes_to_a_log(jobs, noise, capfd):
    model = "import torch\ndef build():\n    print('hello')\n    return {'w': torch.ones(3)}"
    run = jobs.run(noise, model=model)
    assert run.summary.status == "finished", run.summary.error
    assert run.directory.log("model-builder").read_text() == "hello\n"
    assert not run.directory.log("server").exists()
    assert capfd.readouterr() == ("", "")


def test_weights_of_which_no_mean_can_be_made_are_refused(jobs):
    run = jobs.run(sending('params=model.params, meta={"num_examples": 1.5e308}'))
    assert run.summary.status == "failed"
    assert "1.5e+308, and an update's weight is a number from 1e-15 to" in run.summary.error


def test_a_metric_may_not_take_the_place_of_the_round_it_is_of(jobs):
    run = jobs.run(sending('params=model.params, metrics={"round": 77.0}'))
    assert run.summary.status == "failed"
    assert "'round'" in run.summary.error


def test_metrics_that_are_not_numbers_never_make_the_best_round(jobs):
    script = (
        HEADER
        + """
while flare.is_running():
    model = flare.receive()
    flare.log("loss", float("nan"))
    metrics = {"accuracy": float("inf")}
    model.params["b"] += 1
    flare.send(flare.FLModel(params=model.params if flare.is_train() else None, metrics=metrics))
"""
    )
    run = jobs.run(script)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.best is None
    assert run.summary.warnings == []
    for line in run.directory.events.read_bytes().splitlines():
        decode_event(line)


def test_a_script_that_trains_on_evaluation_tasks_is_warned_of_once(jobs):
    script = sending("params=model.params", 'model.params["b"] += 1')
    run = jobs.run(script, "workflow.args.evaluate=task")
    assert run.summary.status == "finished", run.summary.error
    assert len(run.summary.warnings) == 1
    assert "is_evaluate()" in run.summary.warnings[0]


@pytest.mark.nightly
def test_modules_in_the_working_directory_are_not_run_in_place_of_pythons(
    jobs_of_their_own, noise, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("random", "queue", "secrets"):
        (elsewhere / f"{name}.py").write_text("raise RuntimeError('hijacked')")
    monkeypatch.chdir(elsewhere)
    run = jobs_of_their_own.run(noise)
    assert run.summary.status == "finished", run.summary.error


def test_processes_that_cannot_be_started_make_a_failed_run_with_a_summary(
    jobs, noise, monkeypatch
):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("flstream.engines.local.worker_socket_pairs", refuse)
    run = jobs.run(noise)
    assert run.summary.status == "failed"
    assert "Too many open files" in run.summary.error
    assert run.directory.summary.exists()


def test_a_site_that_does_not_answer_in_time_is_named(jobs):
    stuck = script("import threading; threading.Event().wait()")
    run = jobs.run(stuck, "clients.round_timeout=1500 ms", "workflow.args.evaluate_every=0")
    assert run.summary.status == "failed"
    assert "site-2: it did not answer its train task" in run.summary.error
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_stops_the_run_and_keeps_the_last_round(jobs, number):
    slow = script("import threading; threading.Event().wait()")

    def interrupt(event, sampler):
        if isinstance(event, SitePhaseChanged) and event.round == 2 and event.state == "training":
            signal.raise_signal(number)

    before = signal.getsignal(number)
    run = jobs.run(slow, "workflow.args.evaluate_every=0", listener=interrupt)
    assert signal.getsignal(number) is before
    assert run.summary.status == "stopped"
    assert run.summary.rounds_completed == 1
    assert run.directory.checkpoint(1).exists()
    assert run.directory.summary.exists()


def test_a_stopped_run_leaves_no_half_written_checkpoint(jobs, noise):
    def interrupt(event, sampler):
        if isinstance(event, ProcessReady):
            signal.raise_signal(signal.SIGINT)

    run = jobs.run(noise, "model.args.elements=30000000", listener=interrupt)
    assert run.summary.status == "stopped"
    assert not list(run.directory.path.rglob("*.tmp"))


def test_a_run_directory_with_something_in_it_is_refused_and_left_alone(tmp_path):
    mine = tmp_path / "run" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        RunDirectory.create("job", tmp_path / "run")
    assert mine.read_text() == "precious"
