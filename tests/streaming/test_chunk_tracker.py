"""The account of a download: whatever happens to frames, it ends complete and asks for no more."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.streaming.chunk_tracker import ChunkTracker

UNIT = 16
fates = st.sampled_from(["arrives", "is damaged", "is lost", "comes late", "comes twice"])


def requested(nbytes: int = 160, *spans: tuple[int, int], urgent: bool = False) -> ChunkTracker:
    """A tracker with requests numbered from 1, for the spans."""
    tracker = ChunkTracker(nbytes, UNIT)
    for number, (start, stop) in enumerate(spans, 1):
        tracker.request(number, start, stop, urgent=urgent)
    return tracker


def take(tracker: ChunkTracker, number: int, start: int, stop: int) -> None:
    """A frame comes, and is sound."""
    tracker.frame(number, start, stop)
    if tracker.is_wanted(start, stop):
        tracker.arrive(start)


class Sender:
    """Answers urgent requests before others, as a service does, on a line that a test spoils."""

    def __init__(self, nbytes: int, fate: Callable[[], str]) -> None:
        self._nbytes = nbytes
        self._fate = fate
        self._queues: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
        self._late: list[tuple[int, int, int, bool]] = []

    def ask(self, number: int, start: int, stop: int, *, urgent: bool) -> None:
        self._queues[urgent].append((number, start, stop))

    def waiting(self) -> set[int]:
        return {number for queue in self._queues.values() for number, _, _ in queue}

    def frames(self) -> list[tuple[int, int, int, bool]]:
        """What comes next: number, start, stop and whether it is sound; nothing if it is lost."""
        queue = self._queues[True] or self._queues[False]
        if not queue:
            late, self._late = self._late, []
            return late
        number, start, last = queue.pop(0)
        stop = min(start + UNIT, last)
        if stop < last:
            queue.insert(0, (number, stop, last))
        fate = self._fate()
        if fate == "is lost":
            return []
        if fate == "comes late":
            self._late.append((number, start, stop, True))
            return []
        frame = (number, start, stop, fate != "is damaged")
        return [frame, *self._late, frame] if fate == "comes twice" else [frame]


@given(st.integers(0, 400), st.integers(1, 8), st.integers(1, 3), st.data())
def test_whatever_happens_to_frames_all_arrive_and_none_is_asked_for_again(
    nbytes, chunks_a_request, window, data
):
    # The fates end some time: a line that never works is for others to give up.
    left = iter(data.draw(st.lists(fates, max_size=60)))
    sender = Sender(nbytes, lambda: next(left, "arrives"))
    tracker = ChunkTracker(nbytes, UNIT)
    arrived: set[int] = set()
    number = asked = 0

    def ask(start: int, stop: int, *, urgent: bool) -> None:
        nonlocal number
        number += 1
        assert not arrived & set(range(start, stop, UNIT))
        tracker.request(number, start, stop, urgent=urgent)
        sender.ask(number, start, stop, urgent=urgent)

    for _ in range(2000):
        if tracker.complete:
            break
        for start, stop, _ in tracker.repairs(chunks_a_request * UNIT, 1000):
            ask(start, stop, urgent=True)
        assert not tracker.lost
        while len(tracker.under_way) < window and asked < nbytes:
            stop = min(asked + chunks_a_request * UNIT, nbytes)
            ask(asked, stop, urgent=False)
            asked = stop
        frames = sender.frames()
        for its_number, start, stop, sound in frames:
            tracker.frame(its_number, start, stop)
            if tracker.is_wanted(start, stop):
                assert start not in arrived
                if sound:
                    tracker.arrive(start)
                    arrived.add(start)
                else:
                    tracker.damage(start)
        if not frames:  # silence, so the sender is asked what it still has to send
            waiting = sender.waiting()
            for older in [each for each in tracker.under_way if each not in waiting]:
                tracker.give_up(older)
    assert tracker.complete
    assert arrived == set(range(0, nbytes, UNIT))
    assert not tracker.lost


def test_a_body_without_bytes_is_complete_at_once():
    for unit in (0, UNIT):
        tracker = ChunkTracker(0, unit)
        assert tracker.complete
        assert not tracker.is_wanted(0, 0)
        assert tracker.repairs(UNIT, 1) == []


@given(st.integers(1, 400), st.integers(0, 2**64), st.integers(-(2**64), 2**64))
def test_only_a_whole_chunk_that_has_not_arrived_is_wanted(nbytes, start, stop):
    tracker = ChunkTracker(nbytes, UNIT)
    chunks = {(each, min(each + UNIT, nbytes)) for each in range(0, nbytes, UNIT)}
    assert tracker.is_wanted(start, stop) == ((start, stop) in chunks)
    for chunk in chunks:
        assert tracker.is_wanted(*chunk)
        tracker.arrive(chunk[0])
        assert not tracker.is_wanted(*chunk)


def test_a_frame_tells_that_what_was_due_before_it_is_lost():
    tracker = requested(160, (0, 64), (64, 128))
    take(tracker, 1, 0, 16)
    assert tracker.lost == set()
    take(tracker, 1, 48, 64)  # the last one of its request
    assert tracker.lost == {1, 2}
    assert list(tracker.under_way) == [2]
    take(tracker, 2, 80, 96)
    assert tracker.lost == {1, 2, 4}
    assert tracker.under_way[2].next == 96


def test_a_frame_of_a_later_request_gives_up_the_earlier_ones_of_its_kind_alone():
    tracker = requested(160, (0, 32), (32, 64), (64, 96))
    tracker.request(4, 96, 112, urgent=True)
    tracker.request(5, 112, 128, urgent=True)
    take(tracker, 5, 112, 128)
    assert tracker.lost == {6}
    assert list(tracker.under_way) == [1, 2, 3]
    take(tracker, 3, 64, 80)
    assert tracker.lost == {0, 1, 2, 3, 6}
    assert list(tracker.under_way) == [3]


def test_a_frame_that_comes_after_it_was_given_up_is_wanted_all_the_same():
    tracker = requested(64, (0, 64))
    take(tracker, 1, 16, 32)
    assert tracker.lost == {0}
    take(tracker, 1, 0, 16)
    assert tracker.lost == set()
    assert tracker.under_way[1].next == 32  # it does not go back


def test_a_frame_of_a_request_that_was_never_made_changes_nothing():
    tracker = requested(64, (0, 32))
    for number in (0, 2, 2**32 - 1):
        tracker.frame(number, 16, 32)
    assert tracker.under_way[1].next == 0
    assert tracker.lost == set()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**64), st.integers(0, 2**64))))
def test_no_frame_at_all_makes_a_chunk_lost_that_was_not_asked_for(frames):
    tracker = requested(160, (0, 32), (32, 64))
    for number, start, stop in frames:
        tracker.frame(number, start, stop)
    assert tracker.lost <= {0, 1, 2, 3}


def test_what_is_given_up_is_lost_as_far_as_it_has_not_arrived():
    tracker = requested(64, (0, 64))
    take(tracker, 1, 0, 16)
    tracker.request(2, 32, 48, urgent=True)
    take(tracker, 2, 32, 48)
    tracker.give_up(1)
    assert tracker.lost == {1, 3}
    assert tracker.under_way == {}


def test_a_damaged_chunk_is_lost_until_it_is_asked_for_again():
    tracker = requested(64, (0, 64))
    tracker.frame(1, 0, 16)
    tracker.damage(0)
    assert tracker.lost == {0}
    tracker.request(2, 0, 16, urgent=True)
    assert tracker.lost == set()
    take(tracker, 2, 0, 16)
    assert not tracker.is_wanted(0, 16)


@given(
    st.sets(st.integers(0, 24)), st.sets(st.integers(0, 24)), st.integers(1, 6), st.integers(1, 30)
)
def test_repairs_cover_what_is_lost_in_bounded_ranges_of_equal_attempts(
    failed_before, lost, chunks, most_ranges
):
    nbytes = 24 * UNIT + 3
    tracker = ChunkTracker(nbytes, UNIT)
    for round_of, indices in enumerate([failed_before, lost], 1):
        for index in indices:
            tracker.damage(index * UNIT)
        left = sorted(indices)
        while left:
            ranges = tracker.repairs(chunks * UNIT, most_ranges)
            assert 0 < len(ranges) <= most_ranges
            for start, stop, attempt in ranges:
                covered = range(start // UNIT, -(-stop // UNIT))
                assert [left.pop(0) for _ in covered] == list(covered)
                assert stop == min(covered.stop * UNIT, nbytes)
                assert stop - start <= chunks * UNIT
                for index in covered:
                    assert attempt == round_of - (index not in failed_before and round_of > 1)
                tracker.request(1, start, stop, urgent=True)
        assert tracker.repairs(chunks * UNIT, most_ranges) == []


def test_a_chunk_longer_than_a_range_may_be_is_fetched_again_by_itself():
    tracker = requested(64, (0, 64))
    tracker.give_up(1)
    assert tracker.repairs(8, 9) == [(0, 16, 1), (16, 32, 1), (32, 48, 1), (48, 64, 1)]


@pytest.mark.parametrize("times", [1, 5])
def test_attempts_are_counted_chunk_by_chunk(times):
    tracker = requested(64, (0, 64))
    for attempt in range(1, times + 1):
        tracker.damage(16)
        assert tracker.repairs(64, 9) == [(16, 32, attempt)]
        tracker.request(attempt + 1, 16, 32, urgent=True)
    tracker.damage(0)
    tracker.damage(16)
    assert tracker.repairs(64, 9) == [(0, 16, 1), (16, 32, times + 1)]


def test_what_is_missing_is_found_in_runs_from_any_chunk_to_the_end():
    tracker = ChunkTracker(nbytes=90, unit=16)
    assert tracker.missing_from(0, 64) == (0, 64)
    assert tracker.missing_from(64, 64) == (64, 90)
    assert tracker.missing_from(90, 64) is None
    tracker.arrive(16)
    tracker.arrive(80)
    assert tracker.missing_from(0, 64) == (0, 16)
    assert tracker.missing_from(16, 64) == (32, 80)
    assert tracker.missing_from(80, 64) is None
    assert tracker.missing_from(32, 8) == (32, 48)
