"""A job that does not fit is told what would make it fit, and that does."""

from pathlib import Path

import pytest
from journal_support import a_job

from flstream.simulation.forecasting.fitting import Available, available_in, fit
from flstream.simulation.forecasting.forecast import forecast, plain_layout

GIB = 1 << 30
LAYOUT = plain_layout(GIB)


def fitted(job, memory=1 << 50, disk=1 << 50):
    return fit(job, LAYOUT, forecast(job, LAYOUT), Available(memory, disk, Path("runs")))


def test_what_fits_lacks_nothing_and_gets_no_advice():
    found = fitted(a_job())
    assert found.fits
    assert found.advice == ()
    assert fitted(a_job(), disk=None).fits


@pytest.mark.parametrize(
    ("streaming", "advice"),
    [
        ({"mode": "native"}, "set streaming.mode = pull, which needs about 4."),
        (
            {"tensor_download_chunk_size": 0},
            "leave the download chunk sizes at their default, which needs about 4.",
        ),
    ],
)
def test_native_mode_is_told_to_stream_if_that_is_enough(streaming, advice):
    found = fitted(a_job(clients={"count": 4}, streaming=streaming), memory=10 * GIB)
    assert not found.fits
    [lacking] = found.lacking
    assert lacking.startswith("native mode with 4 processes for the sites needs about ")
    assert lacking.endswith(" GiB of memory, 10 GiB are available")
    [suggestion] = found.advice
    assert suggestion.startswith(advice)
    assert suggestion.endswith(" GiB")


def test_the_largest_number_of_workers_that_fits_is_named():
    job = a_job(clients={"count": 8})
    found = fitted(job, memory=4 * GIB)
    [suggestion] = found.advice
    assert suggestion.startswith("set clients.parallel = 3, which needs about 3.")
    three, four = (forecast(a_job(clients={"count": 8, "parallel": n}), LAYOUT) for n in (3, 4))
    assert three.total_bytes <= 4 * GIB < four.total_bytes


def test_both_are_named_where_one_is_not_enough():
    job = a_job(clients={"count": 8}, streaming={"mode": "native"})
    [suggestion] = fitted(job, memory=4 * GIB).advice
    assert suggestion.startswith("set clients.parallel = 3 and streaming.mode = pull, which needs ")


def test_a_model_that_fits_nowhere_has_to_be_smaller():
    assert fitted(a_job(), memory=GIB).advice == ("make the model smaller, or free memory",)


def test_the_most_checkpoints_that_fit_are_named():
    job = a_job(20)
    found = fitted(job, disk=8 * GIB)
    assert found.lacking == ("the run takes up to 21 GiB of disk, 8 GiB are free in runs",)
    assert found.advice == ("set checkpoints.keep = 6",)
    kept = [forecast(a_job(20, checkpoints={"keep": keep}), LAYOUT) for keep in (6, 7)]
    assert kept[0].disk_bytes <= 8 * GIB < kept[1].disk_bytes


def test_where_not_even_one_checkpoint_fits_there_has_to_be_room():
    assert fitted(a_job(20), disk=2 * GIB).advice == ("make room, or name another --run-dir",)


def test_room_is_looked_for_where_the_folder_would_be(tmp_path):
    available = available_in(tmp_path / "not" / "there")
    assert available.memory > 0
    assert available.disk is not None
    assert available.disk > 0
