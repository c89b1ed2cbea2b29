"""A journal with a line missing, doubled, swapped or rewritten resumes to no other bits."""

from collections.abc import Callable, Sequence

import pytest
from journal_support import EffectScript, a_job, a_run

from flstream.errors import ResumeRefusedError, SimulationError
from flstream.report.run_record import read_run
from flstream.runs.journal import Journal, read_history
from flstream.runs.resume import plan_resume, take_up
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import Warned, checks_of, decode_event, encode_lines

Lines = list[bytes]


def without(lines: Lines, place: int) -> Lines:
    return [*lines[:place], *lines[place + 1 :]]


def doubled(lines: Lines, place: int) -> Lines:
    return [*lines[: place + 1], *lines[place:]]


def swapped(lines: Lines, place: int) -> Lines:
    first, second = lines[place : place + 2]
    return [*lines[:place], second, first, *lines[place + 2 :]]


def rewritten(lines: Lines, place: int) -> Lines:
    """Another event in place of a line, with checks that are right for it."""
    event = decode_event(lines[place])
    event.time += 1
    checks = checks_of(lines[place])
    assert checks is not None
    return [*lines[:place], encode_lines([event], checks.follows), *lines[place + 1 :]]


@pytest.fixture
def run(tmp_path):
    return a_run(tmp_path / "run", rounds=4, completed=2)


def resume_with(run, lines: Sequence[bytes]):
    run.events.write_bytes(b"".join(lines))
    return plan_resume(a_job(4), run)


@pytest.mark.parametrize(
    ("harm", "first"), [(without, 0), (doubled, 1), (swapped, 0), (rewritten, 1)]
)
def test_damage_before_the_last_line_is_refused_by_the_line_that_shows_it(
    run, harm: Callable[[Lines, int], Lines], first: int
):
    """The first line that shows it: where the damage is, or the one after."""
    lines = run.events.read_bytes().splitlines(keepends=True)
    for place in range(len(lines) - 1):
        harmed = b"".join(harm(lines, place))
        run.events.write_bytes(harmed)
        with pytest.raises(SimulationError) as caught:
            read_history(run.events)
        said = str(caught.value)
        assert f"{run.events}, line {place + 1 + first}, is damaged: it does not follow" in said
        assert "put the file back from a copy, or cut it off before this line to go on" in said
    with pytest.raises(ResumeRefusedError, match="does not follow the line before"):
        plan_resume(a_job(4), run)
    assert run.events.read_bytes() == harmed


def test_the_last_line_is_as_after_a_crash_if_it_is_missing_and_refused_if_it_is_doubled(run):
    lines = run.events.read_bytes().splitlines(keepends=True)
    with pytest.raises(ResumeRefusedError, match=f"line {len(lines) + 1}, is damaged"):
        resume_with(run, doubled(lines, len(lines) - 1))
    # A crash before the line and before its line end are the same.
    for end in (b"", lines[-1][:-1]):
        point = resume_with(run, [*lines[:-1], end])
        assert point.effect == EffectScript(4, 1).last_effect(2)
    take_up(a_job(4), run, point)
    with EventLog(run.events) as log:
        log.write(Warned(message="first"), Warned(message="second"))
    *kept, resumed, first, second = run.events.read_bytes().splitlines(keepends=True)
    assert kept == lines[:-1]
    for before, line in zip([kept[-1], resumed, first], [resumed, first, second], strict=True):
        assert checks_of(line).follows == checks_of(before).check
    assert plan_resume(a_job(4), run).effect == point.effect


def test_a_tolerant_reader_takes_what_is_there_and_says_where_it_does_not_follow(run):
    lines = run.events.read_bytes().splitlines(keepends=True)
    warned = next(n for n, line in enumerate(lines) if b'"kind":"warned"' in line)
    run.events.write_bytes(b"".join(without(lines, warned)))
    journal = Journal(run.events, tolerant=True)
    assert list(journal)[-1].round == 2
    assert (journal.gaps, journal.damaged) == (1, 0)
    notes = " ".join(read_run(run.path).notes)
    assert "in 1 place, lines are missing, doubled or swapped" in notes
    # A line that was changed is damaged, and what follows it does follow it.
    lines[warned] = lines[warned].replace(b'"message":"', b'"message":"not ')
    run.events.write_bytes(b"".join(lines))
    assert len([*journal]) == len(lines) - 1
    assert (journal.gaps, journal.damaged) == (0, 1)
