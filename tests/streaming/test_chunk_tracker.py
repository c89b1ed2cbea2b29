"""The account of a download: whatever happens to chunks, it ends complete and asks for no more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.streaming.chunk_tracker import ChunkTracker

UNIT = 16


def requested(*spans: tuple[int, int], nbytes: int = 150) -> ChunkTracker:
    """A tracker with requests numbered from 1, for the spans."""
    tracker = ChunkTracker(nbytes, UNIT)
    for number, (start, stop) in enumerate(spans, 1):
        tracker.request(number, start, stop, urgent=False)
    return tracker


@given(
    st.integers(0, 400),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.2, 0.5]),
)
def test_every_chunk_arrives_once_whatever_comes_damaged_and_whenever_it_starts_again(
    nbytes, chunks_a_request, random, rate
):
    tracker, arrived, number, asked = ChunkTracker(nbytes, UNIT), [], 0, 0
    while not tracker.complete:
        while tracker.damaged:
            number += 1
            tracker.request(number, *tracker.damaged.popleft(), urgent=True)
        missing = tracker.missing_from(asked, chunks_a_request * UNIT)
        if missing is not None and len(tracker.under_way) < 2:
            number, asked = number + 1, missing[1]
            tracker.request(number, *missing, urgent=False)
        if random.random() < rate / 4:
            tracker.restart()
            asked = 0
            continue
        which = random.choice(list(tracker.under_way))
        start = tracker.under_way[which].next
        stop = min(start + UNIT, nbytes)
        assert not tracker.has_arrived(start, stop)
        assert tracker.take(which, start, stop)
        if random.random() < rate:
            tracker.damage(start, stop)
        else:
            tracker.arrive(start, stop)
            arrived.append(start)
    assert sorted(arrived) == list(range(0, nbytes, UNIT))


def test_a_chunk_that_arrives_again_counts_once():
    tracker = ChunkTracker(4 * UNIT, UNIT)
    tracker.arrive(0, 2 * UNIT)
    tracker.arrive(UNIT, 3 * UNIT)
    assert not tracker.complete
    tracker.arrive(3 * UNIT, 4 * UNIT)
    assert tracker.complete


@pytest.mark.parametrize(
    ("start", "stop"), [(16, 32), (0, 8), (0, 32), (0, 0), (8, 24), (2**63, 2**63 + 16), (48, 64)]
)
def test_a_frame_that_is_not_the_next_one_of_its_request_is_none(start, stop):
    tracker = requested((0, 48))
    assert not tracker.take(1, start, stop)
    assert tracker.take(1, 0, 16)


def test_a_request_is_over_with_its_last_frame_which_may_be_shorter():
    tracker = requested((112, 150))
    for start, stop in ((112, 128), (128, 144), (144, 150)):
        assert 1 in tracker.under_way
        assert tracker.take(1, start, stop)
    assert 1 not in tracker.under_way


def test_runs_of_missing_chunks_are_cut_by_what_has_arrived():
    tracker = ChunkTracker(160, UNIT)
    for start in (32, 48):
        tracker.arrive(start, start + UNIT)
    assert tracker.missing_from(0, 1000) == (0, 32)
    assert tracker.missing_from(32, 1000) == (64, 160)
    assert tracker.missing_from(0, 16) == (0, 16)
    assert tracker.missing_from(0, 1) == (0, 16)
    assert tracker.missing_from(160, 16) is None


def test_how_often_a_chunk_came_damaged_is_counted_over_all_connections():
    tracker = ChunkTracker(160, UNIT)
    came = [tracker.damage(start, start + UNIT) for start in (32, 48, 32)]
    assert came == [1, 1, 2]
    tracker.restart()
    assert not tracker.damaged
    assert tracker.damage(32, 48) == 3


def test_an_empty_body_is_complete():
    assert ChunkTracker(0, UNIT).complete
    assert ChunkTracker(0, 0).missing_from(0, 16) is None
