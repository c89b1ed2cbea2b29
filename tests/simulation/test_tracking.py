"""Whole runs with a tracker: killed at any instant, they leave each point once, the final one."""

import os
import signal

import pytest
from event_files import scalars, texts
from nightly_cases import first_and_nightly
from test_resume_run import SIX, WAITS, cut_off
from training_scripts import LARGE, noisy, of_kind

from flstream.telemetry.events import ProcessReady, SiteLog, SitesBeganAnew

TENSORBOARD = "tracking.type=tensorboard"
LOGS = """
flare.log("mean", params["w"].mean().item())
flare.log("step", number, global_step=10 * number)
flare.log("note", f"round {number}")
"""


class KillsWhenSiteWaits:
    """Kills a process, once, when a site says that it waits for that."""

    def __init__(self, victim):
        self._victim = victim
        self._pids = {}
        self.has_struck = False

    def __call__(self, event, sampler):
        if isinstance(event, ProcessReady):
            self._pids[event.process] = event.pid
        if isinstance(event, SiteLog) and event.key == "waits" and not self.has_struck:
            self.has_struck = True
            os.kill(self._pids[self._victim], signal.SIGKILL)


# Time and memory of a run differ from those of another; bytes where sites share workers.
MEASURED = ("seconds/", "memory/", "bytes/")


def points(run, source):
    """Points of a source by tag, but for those that are measured; each step is there once."""
    found = {**scalars(run.directory.path, source), **texts(run.directory.path, source)}
    assert source != "global" or {"seconds/train", "bytes/up"} <= set(found)
    for tag, values in found.items():
        steps = [step for step, _ in values]
        assert len(set(steps)) == len(steps), (tag, values)
    return {
        tag: sorted(values) for tag, values in found.items() if not tag.startswith(MEASURED)
    }  # fmt: skip


def all_points(run):
    sources = sorted(path.name for path in (run.directory.path / "tensorboard").iterdir())
    return {source: points(run, source) for source in sources}


def without_waiting(found):
    """Points without what a site logs that waits to be killed."""
    return {
        source: {tag: values for tag, values in tags.items() if tag != "waits"}
        for source, tags in found.items()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """The points of six sites in three rounds that nobody disturbs."""
    jobs = jobs_in(tmp_path_factory.mktemp("undisturbed"))
    return all_points(jobs.run(noisy(LOGS), *SIX, TENSORBOARD))


def test_a_run_leaves_event_files_of_all_its_sites_and_of_the_whole(undisturbed):
    assert sorted(undisturbed) == ["global", *(f"site-{n}" for n in range(1, 7))]
    site = undisturbed["site-2"]
    assert site["step"] == [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert site["note/text_summary"] == [(1, "round 1"), (2, "round 2"), (3, "round 3")]
    assert [step for step, _ in site["weight"]] == [1, 2, 3]
    assert [step for step, _ in undisturbed["global"]["accuracy"]] == [1, 2, 3]


@first_and_nightly("how", [[], ["clients.parallel=2"]], ids=["own", "shared"])
def test_a_run_that_is_killed_in_mid_round_has_every_point_once(jobs, undisturbed, how):
    script = noisy(LOGS + WAITS % 3)
    run = cut_off(
        jobs, KillsWhenSiteWaits("server"), *SIX, *how, TENSORBOARD,
        script=script,
    )  # fmt: skip
    resumed = jobs.go_on(run, script, *SIX, *how, TENSORBOARD)
    assert without_waiting(all_points(resumed)) == undisturbed


def test_sites_of_a_worker_that_is_lost_have_every_point_once(jobs, undisturbed):
    script = noisy(LOGS + WAITS % 3)
    killer = KillsWhenSiteWaits("worker-1")
    run = jobs.run(script, *SIX, "clients.parallel=2", TENSORBOARD, listener=killer)
    assert killer.has_struck
    assert (run.summary.status, run.summary.error) == ("finished", None)
    assert {site for each in of_kind(run, SitesBeganAnew) for site in each.sites}
    assert without_waiting(all_points(run)) == undisturbed


@pytest.mark.nightly
def test_tracking_can_begin_when_a_run_goes_on(jobs, undisturbed):
    script = noisy(LOGS + WAITS % 3)
    run = cut_off(jobs, KillsWhenSiteWaits("server"), *SIX, script=script)
    assert not (run.directory.path / "tensorboard").exists()
    resumed = jobs.go_on(run, script, *SIX, TENSORBOARD)
    assert without_waiting(all_points(resumed)) == undisturbed


@pytest.mark.nightly
def test_updates_that_are_taken_up_from_disk_keep_their_points(jobs):
    shared = [*SIX, LARGE, "clients.parallel=1", TENSORBOARD]
    script = noisy(LOGS + WAITS % 6)
    # It waits after it has logged what it logs always: the run is killed when it waits.
    run = cut_off(jobs, KillsWhenSiteWaits("server"), *shared, script=script)
    resumed = jobs.go_on(run, script, *shared)
    found = all_points(resumed)
    for number in range(1, 7):
        assert [step for step, _ in found[f"site-{number}"]["mean"]] == [1, 2, 3]
        assert [step for step, _ in found[f"site-{number}"]["weight"]][:1] == [1]


TRACKER = """
class Tracker:
    def __init__(self, run, name):
        self.file = open(run.folder / name, "w")

    def scalars(self, source, step, values, time):
        for key, value in values.items():
            print(source, key, step, value, file=self.file)

    def text(self, source, step, key, text, time):
        print(source, key, step, text, file=self.file)

    def flush(self):
        self.file.flush()

    def close(self):
        self.file.close()


class Raises(Tracker):
    def text(self, source, step, key, text, time):
        raise ValueError("no text, please")


class Dies(Tracker):
    def text(self, source, step, key, text, time):
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
"""


def with_tracker(jobs, name):
    (jobs.folder / "mine.py").write_text(TRACKER)
    own = [f"tracking.type=mine.py:{name}", "tracking.args.name=points.txt"]
    return jobs.run(noisy(LOGS), "rounds=2", *own)


def test_a_tracker_of_ones_own_has_the_same_points(jobs):
    run = with_tracker(jobs, "Tracker")
    assert run.summary.warnings == []
    lines = (run.directory.path / "points.txt").read_text().splitlines()
    assert {"site-1 step 20 2.0", "site-2 note 1 round 1"} <= set(lines)
    assert len(set(lines)) == len(lines)
    assert not run.directory.log("tracker").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Raises", "mine.py:Raises raised ValueError: no text, please; see tracker.log"),
        ("Dies", "its process was killed by SIGKILL"),
    ],
)
def test_a_tracker_that_fails_is_a_warning_and_the_run_goes_on(jobs, name, reason):
    run = with_tracker(jobs, name)
    assert run.summary.status == "finished"
    assert run.summary.warnings == [f"tracking has ended early: {reason}"]
    assert run.directory.final_model.exists()


def test_without_tracking_there_is_nothing_of_it(jobs):
    run = jobs.run(noisy(), "rounds=1")
    assert not (run.directory.path / "tensorboard").exists()
    assert "tracker" not in run.directory.memory.read_text()
