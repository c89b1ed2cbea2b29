"""Whole runs with a tracker: cut off at any instant, they leave each point once, the final one."""

import os
import threading

import pytest
from event_files import scalars, texts
from training_scripts import noisy

from flstream.tracking import feed

TENSORBOARD = "tracking.type=tensorboard"
LOGS = """
flare.log("mean", params["w"].mean().item())
flare.log("step", number, global_step=10 * number)
flare.log("note", f"round {number}")
"""
FAILS = """
mark = f"{folder}/failed"
if (site, number) == ("site-2", 2) and not os.path.exists(mark):
    open(mark, "w").close()
    raise KeyError("not now")
"""
THREE = ["clients.count=3", "rounds=3"]
MEASURED = ("seconds/", "memory/", "bytes/")  # by which runs differ


def points(run, source):
    """Points of a source by tag, but for those that are measured; each step is there once."""
    found = {**scalars(run.directory.path, source), **texts(run.directory.path, source)}
    assert source != "global" or {"seconds/train", "bytes/up"} <= set(found)
    for tag, values in found.items():
        steps = [step for step, _ in values]
        assert len(set(steps)) == len(steps), (tag, values)
    return {tag: sorted(values) for tag, values in found.items() if not tag.startswith(MEASURED)}


def all_points(run):
    sources = sorted(path.name for path in (run.directory.path / "tensorboard").iterdir())
    return {source: points(run, source) for source in sources}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """The points of three sites in three rounds that nobody disturbs."""
    jobs = jobs_in(tmp_path_factory.mktemp("undisturbed"))
    return all_points(jobs.run(noisy(LOGS), *THREE, TENSORBOARD))


def test_a_run_leaves_event_files_of_all_its_sites_and_of_the_whole(undisturbed):
    assert sorted(undisturbed) == ["global", "site-1", "site-2", "site-3"]
    site = undisturbed["site-2"]
    assert site["step"] == [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert site["note/text_summary"] == [(1, "round 1"), (2, "round 2"), (3, "round 3")]
    assert [step for step, _ in site["weight"]] == [1, 2, 3]
    assert [step for step, _ in undisturbed["global"]["accuracy"]] == [1, 2, 3]


@pytest.mark.parametrize("before", [[TENSORBOARD], []])
def test_a_run_that_is_cut_off_in_mid_round_has_every_point_once(jobs, undisturbed, before):
    # Also where tracking begins only when the run goes on.
    script = noisy(LOGS + FAILS)
    run = jobs.run(script, *THREE, *before)
    assert "not now" in run.summary.error
    assert (run.directory.path / "tensorboard").exists() == (TENSORBOARD in before)
    resumed = jobs.go_on(run, script, *THREE, TENSORBOARD)
    assert all_points(resumed) == undisturbed


TRACKER = """
class Tracker:
    def __init__(self, run, name):
        self.path, self.lines = run.folder / name, []

    def scalars(self, source, step, values, time):
        self.lines += [f"{source} {key} {step} {value}" for key, value in values.items()]

    def text(self, source, step, key, text, time):
        self.lines.append(f"{source} {key} {step} {text}")

    def flush(self):
        self.path.write_text("\\n".join(self.lines))

    close = flush


class Raises(Tracker):
    def text(self, source, step, key, text, time):
        raise ValueError("no text, please")


class Exits(Tracker):
    def text(self, source, step, key, text, time):
        raise SystemExit(3)


class Hangs(Tracker):
    def flush(self):
        pass

    def close(self):
        with open(self.path) as fifo:
            fifo.read()
"""


def with_tracker(jobs, kind, name="points.txt"):
    (jobs.folder / "mine.py").write_text(TRACKER)
    own = [f"tracking.type=mine.py:{kind}", f"tracking.args.name={name}"]
    return jobs.run(noisy(LOGS), "rounds=2", *own).finished()


def test_a_tracker_of_ones_own_has_the_same_points(jobs):
    run = with_tracker(jobs, "Tracker")
    assert run.summary.warnings == []
    lines = (run.directory.path / "points.txt").read_text().splitlines()
    assert {"site-1 step 20 2.0", "site-2 note 1 round 1"} <= set(lines)
    assert len(set(lines)) == len(lines)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("name", "reason"),
    [("Raises", "raised ValueError: no text, please"), ("Exits", "raised SystemExit: 3")],
)
def test_a_tracker_that_fails_is_a_warning_and_the_run_goes_on(jobs, capsys, name, reason):
    [warning] = with_tracker(jobs, name).summary.warnings
    assert warning == f"tracking has ended early: mine.py:{name} {reason}"
    assert reason.split()[1].rstrip(":") in capsys.readouterr().err


@pytest.mark.usefixtures("processes")
def test_a_tracker_that_hangs_is_a_warning(jobs, monkeypatch):
    monkeypatch.setattr(feed, "_FINISH_SECONDS", 1.0)
    fifo = jobs.folder / "fifo"
    os.mkfifo(fifo)
    run = with_tracker(jobs, "Hangs", name=fifo)
    [hanging] = [each for each in threading.enumerate() if each.name == feed.TRACKER]
    fifo.open("w").close()  # which lets it end
    hanging.join()
    [warning] = run.summary.warnings
    reason = "mine.py:Hangs did not take the last points within 1 s"
    assert warning == f"tracking has ended early: {reason}"
