"""A job that does not fit is told what would make it fit, and that does."""

from pathlib import Path

import pytest
from journal_support import a_job

from flstream.simulation.forecast import (
    Available,
    Lack,
    available_in,
    forecast,
    lacks,
    plain_layout,
)

GIB = 1 << 30
LAYOUT = plain_layout(GIB)


def fitted(job, memory=1 << 50, disk=1 << 50):
    available = Available(memory, disk, Path("runs"))
    return list(lacks(job, LAYOUT, forecast(job, LAYOUT), available))


def test_what_fits_lacks_nothing_and_gets_no_advice():
    assert fitted(a_job()) == []


NATIVE = {"mode": "native"}


@pytest.mark.parametrize(
    ("clients", "streaming", "memory", "advice"),
    [
        (4, NATIVE, 10, "set streaming.mode = pull and leave the chunk sizes at their default"),
        (8, {}, 4, "set clients.parallel = 3"),
        (2, {}, 1, "make the model smaller, or free memory"),
    ],
)
def test_a_job_that_takes_too_much_memory_gets_the_change_that_fits(
    clients, streaming, memory, advice
):
    job = a_job(clients={"count": clients}, streaming=streaming)
    [(sentence, change)] = fitted(job, memory=memory * GIB)
    assert sentence.endswith(f" GiB of memory, {memory} GiB are available")
    assert change == advice
    if advice.startswith("set clients.parallel"):
        job = a_job(clients={"count": clients, "parallel": 3})
        assert fitted(job, memory=memory * GIB) == []


def test_the_most_checkpoints_that_fit_are_named():
    sentence = "the run takes about 21 GiB of disk, 8 GiB are free in runs"
    assert fitted(a_job(20), disk=8 * GIB) == [Lack(sentence, "set checkpoints.keep = 6")]
    kept = [forecast(a_job(20, checkpoints={"keep": keep}), LAYOUT) for keep in (6, 7)]
    assert kept[0].disk_bytes <= 8 * GIB < kept[1].disk_bytes
    assert fitted(a_job(20), disk=2 * GIB)[0].change == "make room, or name another --run-dir"


def test_room_is_looked_for_where_the_folder_would_be(tmp_path):
    assert (available_in(tmp_path / "not" / "there").disk or 0) > 0
