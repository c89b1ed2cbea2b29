"""``flstream debug``: one site in the foreground, with the answer that it gave in the run."""

import json
import os

import pytest
from terminal import Terminal

pytestmark = pytest.mark.usefixtures("_without_pages")
DRAWS = """\
import torch
    drawn = torch.rand(3)
    if False:
        breakpoint()
    for tensor in model.params.values():
        tensor += drawn.sum()
    metrics = {"drawn": float(drawn[0]), "w": float(model.params["bias"][0])}
"""


@pytest.fixture
def job(write_job):
    """The folder of a job whose sites draw what they add."""
    return write_job(DRAWS, "rounds = 3, clients.count = 3").parent


def change(job, old, new):
    path = job / "client.py"
    path.write_text(path.read_text().replace(old, new))


def answer(run, number, site):
    """What a site answered in a round of a run."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return next(
        each["metrics"]
        for each in events
        if each["kind"] == "site_update" and (each["round"], each["site"]) == (number, site)
    )


def files_of(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_site_stops_in_its_line_and_answers_as_in_the_run(flstream_here, job, tmp_path):
    flstream_here("simulate", job, "--run-dir", "run", "--engine", "inline", "-q")
    run = tmp_path / "run"
    before, answered = files_of(run), answer(run, 2, "site-3")
    change(job, "if False", "if True")
    terminal = Terminal("debug", str(job), "--site", "site-3", "--round", "2", "--run", str(run))
    assert "client.py(" in terminal.until("(Pdb) ")
    assert "('site-3', torch.Size([3]))" in terminal.pdb("p flare.get_site_name(), drawn.shape")
    assert str(answered["drawn"]) in terminal.pdb("p float(drawn[0])")
    terminal.enter("continue\n")
    terminal.until("site-3 answered in round 2")
    assert f"w {answered['w']:.4f}" in terminal.until("\n")
    assert terminal.status() == 0
    assert files_of(run) == before
    assert [path.name for path in job.iterdir() if path.name.startswith(".flstream")] == []


def test_a_site_that_is_left_in_pdb_ends_like_a_run_that_was_stopped(job):
    change(job, "if False", "if True")
    terminal = Terminal("debug", str(job), "--site", "site-1")
    terminal.until("(Pdb) ")
    terminal.enter("q\n")
    assert terminal.status() == 130
    assert "Traceback" not in terminal.output


def test_the_model_of_a_cyclic_round_is_made_by_the_sites_before(flstream_here, job, tmp_path):
    with (job / "job.conf").open("a") as file:
        file.write("\nworkflow.type = cyclic")
    flstream_here("simulate", job, "--run-dir", "run", "--engine", "inline", "-q")
    done = flstream_here("debug", job, "--site", "site-2", "--round", "3", "--run", "run")
    value = answer(tmp_path / "run", 3, "site-2")["w"]
    assert done.returncode == 0
    assert f"w {value:.4f}" in done.stdout


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--site", "site-9"], "site-9 is no site"),
        (["--site", "site-1", "--round", "2"], "--run"),
        (["--site", "site-1", "--run", "nowhere"], "not a run directory"),
        (["--site", "site-1", "--set", "aggregation.method=nonsense"], "aggregation.method"),
    ],
)
def test_what_cannot_be_debugged_is_a_sentence(refused, job, words, meant):
    assert meant in refused("debug", job, *words)


def test_a_site_is_debugged_with_other_settings_than_the_run_had(flstream_here, job):
    set_in_run = ("--set", "seed=5", "--set", "clients.threads=1")
    flstream_here("simulate", job, "--run-dir", "run", "--engine", "inline", "-q", *set_in_run)
    debug = ("--site", "site-1", "--run", "run", "--round", "2")
    for source, words in ((job, ("--set", "rounds=2")), ("run", ())):
        done = flstream_here("debug", source, *debug, *words)
        assert done.returncode == 0, done.stderr


def test_where_the_run_is_of_another_job_a_failure_names_the_keys(
    flstream_here, refused, job, tmp_path
):
    flstream_here("simulate", job, "--run-dir", "run", "--engine", "inline", "-q")
    words = ("--site", "site-1", "--run", "run", "--round", "2", "--set", "workflow.type=cyclic")
    errors = refused("debug", job, *words)
    for part in ("effect 1 of the workflow was", "workflow.type is", "there and", "same --set"):
        assert part in errors
    assert f"flstream debug {tmp_path / 'run'} --run" in errors
    assert "--resume" not in errors
    assert ".flstream-debug" not in errors


def test_a_round_that_the_run_has_not_come_to_or_lacks_is_a_sentence(
    flstream_here, refused, job, tmp_path
):
    flstream_here("simulate", job, "--run-dir", "run", "--engine", "inline", "-q")
    debug = ("debug", job, "--site", "site-1", "--run", "run", "--round")
    for words, last in ((("4",), 3), (("5", "--set", "rounds=9"), 4)):
        assert f"name one from 1 to {last}" in refused(*debug, *words)
    assert flstream_here(*debug, "4", "--set", "rounds=9").returncode == 0
    os.truncate(tmp_path / "run" / "checkpoints" / "round-0001.safetensors", 8)
    errors = refused(*debug, "2", "--set", "seed=5")
    for part in ("no longer has all that round 2 began with", "needs a model", "and 5 here"):
        assert part in errors
    assert str(tmp_path / "run") in errors
    assert "--resume" not in errors
    assert ".flstream-debug" not in errors


def test_a_site_that_fails_is_told_with_its_traceback(job):
    change(job, "if False:\n        breakpoint()", "1 / 0")
    terminal = Terminal("debug", str(job), "--site", "site-1")
    terminal.until("ZeroDivisionError: division by zero")
    terminal.until("site-1 failed in round 1")
    assert terminal.status() == 1


def test_a_breakpoint_in_an_ordinary_run_says_how_to_debug(flstream_here, job):
    change(job, "if False", "if True")
    done = flstream_here("simulate", job, "--run-dir", "run", "-q")
    assert done.returncode == 1
    assert f"flstream debug {job} --site site-" in done.stderr
