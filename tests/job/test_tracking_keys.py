"""The keys of a tracker: what they take, and what is said of mistakes."""

import importlib.util

import pytest

from flstream.job import Job, JobError, load_job

JOB = """
name = test, rounds = 1
clients { names = [ward, NAME] }
model { factory = "json:loads" }
train { script = client.py }
tracking { TRACKING }
"""


@pytest.fixture
def load(tmp_path):
    (tmp_path / "client.py").write_text("")
    (tmp_path / "mine.py").write_text("class Tracker: ...")

    def load(tracking: str, name: str = "clinic") -> Job:
        text = JOB.replace("TRACKING", tracking).replace("NAME", name)
        (tmp_path / "job.conf").write_text(text)
        return load_job(tmp_path / "job.conf")

    return load


def test_nothing_is_tracked_by_default(load):
    assert load("").tracking.type is None
    assert load("type = null").tracking.place is None


def test_a_tracker_is_named_by_type(load):
    assert load("type = tensorboard").tracking.place == "flstream.tracking.tensorboard:TensorBoard"
    tracking = load('type = "mine.py:Tracker", args { a = 1 }').tracking
    assert tracking.place is not None
    assert tracking.place.endswith("/mine.py:Tracker")
    assert tracking.name == "mine.py:Tracker"
    assert tracking.args == {"a": 1}


@pytest.mark.parametrize(
    ("tracking", "message"),
    [
        ("type = tensorbord", "did you mean tensorboard?"),
        ("type = wandb", "must be tensorboard, mlflow, path/to/file.py:Class or module:Class"),
        ("type = 3", "given 3; must be tensorboard"),
        ('type = "mine.py:Trakcer"', "did you mean Tracker?"),
        ('type = "theirs.py:Tracker"', "there is no"),
        ("type = tensorboard, args { a = 1 }", "must be none, as tracking.type is tensorboard"),
        ("args { a = 1 }", "must be none, as tracking.type is null"),
    ],
)
def test_mistakes_are_named(load, tracking, message):
    with pytest.raises(JobError) as caught:
        load(tracking)
    assert len(caught.value.problems) == 1
    assert message in str(caught.value)


def test_what_is_not_installed_is_found_before_the_run_with_the_command_that_helps(
    load, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JobError, match=r"install it: pip install 'flstream\[tracking\]'"):
        load("type = tensorboard")


def test_no_site_has_the_name_that_stands_for_the_run(load):
    assert load("", name="global").clients.names == ["ward", "global"]
    with pytest.raises(JobError, match=r"clients\.names: given .* other names than global"):
        load("type = tensorboard", name="global")
