"""A run goes on with the job that it was made by, and no other."""

from pathlib import Path

import pytest
from journal_support import a_job, a_run
from nightly_cases import first_and_nightly

from flstream.errors import UsageError
from flstream.job import render_job
from flstream.runs.resume import plan_resume
from flstream.runs.run_directory import RunDirectory


def test_another_job_is_refused_with_every_key_that_differs(tmp_path):
    run = a_run(tmp_path / "run")
    other = a_job(
        2,
        clients={"count": 8, "per_round": 1.0},
        train={"script": str(Path(__file__)), "args": {"lr": "0.1"}},
    )
    with pytest.raises(UsageError) as caught:
        plan_resume(other, run)
    said = str(caught.value)
    assert said.startswith(f"the run in {run.path} was made by another job: ")
    for words in (
        "rounds is 3 there and 2 here",
        "clients.count is 2 there and 8 here",
        "clients.per_round is null there and 1.0 here",
        'train.args is {} there and { "lr" = "0.1" } here',
        'test_job_match.py" here',
    ):
        assert words in said
    assert said.count(" there and ") == 5
    assert "leave out --resume" in said


@first_and_nightly("keep", ["all", 1, 7])
def test_how_many_checkpoints_are_kept_may_change(tmp_path, keep):
    run = a_run(tmp_path / "run")
    assert plan_resume(a_job(checkpoints={"keep": keep}), run).round == 3
    # It does not make another job pass.
    with pytest.raises(UsageError) as caught:
        plan_resume(a_job(checkpoints={"keep": keep}, seed=9), run)
    assert "seed is 0 there and 9 here; give the job it was made by" in str(caught.value)
    assert "and its checkpoints.keep, tracking and engine others" in str(caught.value)


def test_a_job_with_everything_in_it_is_the_same_as_itself_written_out(tmp_path):
    job = a_job(
        seed=2**63,
        clients={"count": 4, "per_round": 0.3, "round_timeout": "90 s"},
        model={"factory": "json:loads", "args": {"z": [1, 2.5, None], "a": {"include": True}}},
        train={"script": str(Path(__file__)), "args": {"text": 'q"uo\\te\n', "b": 1, "a": 1e-9}},
        aggregation={"include": ["^a", "b$"], "clip_norm": 0.1},
    )
    run = RunDirectory.create("job", tmp_path / "run")
    run.write(run.job_file, render_job(job))
    assert plan_resume(job, run) is None
    clients = job.clients.model_copy(update={"per_round": 0.4})
    with pytest.raises(UsageError, match=r"clients.per_round is 0.3 there and 0.4 here; give"):
        plan_resume(job.model_copy(update={"clients": clients}), run)


def test_a_job_whose_script_was_moved_is_another_job(tmp_path):
    script = tmp_path / "client.py"
    script.write_text("import flstream.client\n")
    run = RunDirectory.create("job", tmp_path / "run")
    job = a_job(train={"script": str(script)})
    run.write(run.job_file, render_job(job))
    script.rename(tmp_path / "moved.py")
    with pytest.raises(UsageError, match=r'train.script is ".*/client.py" there and ".*/moved.py"'):
        plan_resume(a_job(train={"script": str(tmp_path / "moved.py")}), run)


def test_a_job_file_that_is_damaged_is_named(tmp_path):
    run = a_run(tmp_path / "run")
    run.job_file.write_text("name = {")
    with pytest.raises(UsageError, match=r"run/job.conf"):
        plan_resume(a_job(), run)


def test_a_key_that_the_run_did_not_know_is_compared_with_its_default(tmp_path):
    run = a_run(tmp_path / "run")
    lines = run.job_file.read_text().splitlines()
    run.job_file.write_text("\n".join(line for line in lines if "window" not in line))
    assert plan_resume(a_job(), run).round == 3
    with pytest.raises(UsageError, match=r"streaming\.window is 2 there and 5 here"):
        plan_resume(a_job(streaming={"window": 5}), run)
