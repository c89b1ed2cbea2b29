"""Event files are what TensorBoard reads, a folder for each source; no other files are touched."""

import math

import pytest
from event_files import scalars, texts

from flstream.tracking.tensorboard import TensorBoard
from flstream.tracking.tracker import TrackedRun


@pytest.fixture
def run(tmp_path):
    return TrackedRun("job", tmp_path, 1_700_000_000.9)


def test_numbers_and_text_are_read_back(run):
    tracker = TensorBoard(run)
    tracker.scalars("global", 1, {"accuracy": 0.5, "bytes/up": 2.0**40}, 100.0)
    tracker.scalars("global", 2, {"accuracy": 0.75}, 101.0)
    tracker.flush()  # what was can be read while the run goes on
    assert scalars(run.folder, "global")["accuracy"] == [(1, 0.5), (2, 0.75)]
    # Numbers beyond single precision are infinite.
    tracker.scalars("global", 1, {"low": -1e300, "high": 1e300}, 100.0)
    tracker.text("ward", 7, "note", "süß\n**bold**", 102.0)
    tracker.scalars("ward", -3, {"loss": math.nan}, 103.0)
    tracker.close()
    assert scalars(run.folder, "global") == {
        "accuracy": [(1, 0.5), (2, 0.75)], "bytes/up": [(1, 2.0**40)],
        "low": [(1, -math.inf)], "high": [(1, math.inf)],
    }  # fmt: skip
    assert texts(run.folder, "ward") == {"note/text_summary": [(7, "süß\n**bold**")]}
    ((step, value),) = scalars(run.folder, "ward")["loss"]
    assert step == -3
    assert math.isnan(value)


def test_of_many_sites_few_files_are_open(run):
    tracker = TensorBoard(run)
    sites = [f"site-{number}" for number in range(1, 201)]
    for step in (1, 2):
        for site in sites:
            tracker.scalars(site, step, {"loss": float(step)}, 100.0)
    assert len(tracker._open) <= 64
    tracker.close()
    assert {str(scalars(run.folder, site)) for site in sites} == {"{'loss': [(1, 1.0), (2, 2.0)]}"}
    assert len(list(run.folder.rglob("*.flstream"))) == 200


def test_another_take_replaces_the_files_of_the_one_before_and_no_others(run):
    """Also for a TensorBoard that has read some of the take before: it forgets those points."""

    def take(value, *sources):
        tracker = TensorBoard(run)
        for source in sources:
            tracker.scalars(source, 1, {"accuracy": value}, 100.0)
        tracker.close()

    take(0.125, "global", "gone")
    (mine,) = (run.folder / "tensorboard" / "global").iterdir()
    kept = mine.read_bytes()
    names = "1700000000.host.1.0", "1600000000.0000.flstream"
    others = [mine.with_name(f"events.out.tfevents.{name}") for name in names]
    for path in others:
        path.write_text("")
    take(0.25, "global")
    assert not mine.exists()
    assert all(path.exists() for path in others)
    assert scalars(run.folder, "global") == {"accuracy": [(1, 0.25)]}
    assert not list((run.folder / "tensorboard" / "gone").iterdir())
    mine.write_bytes(kept)
    take(0.75, "global")
    assert scalars(run.folder, "global") == {"accuracy": [(1, 0.75)]}
