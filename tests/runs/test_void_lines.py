"""What sites logged counts once, wherever a run was interrupted and went on."""

import pytest
from journal_support import EffectScript, folded

from flstream.runs.journal import Journal
from flstream.telemetry.events import (
    ModelReady,
    RoundStarted,
    RunResumed,
    SiteLog,
    SitesBeganAnew,
    UpdateTakenUp,
    encode_lines,
)


def event_of(token):
    """An event: `5` is a point of site-1 in round 1, `5.2` one of site-2, `5.1.2` of round 2.

    `S` and `M` are the run's start and its initial model, `f1` effect 1, `r1` a resume after it,
    `t1` says that the update of site-1 is taken up, `o` opens round 1, `a12` begins sites anew.
    """
    sites = [f"site-{digit}" for digit in token[1:]]
    match token[0]:
        case "S":
            return EffectScript(3, 0).started()[0]
        case "M":
            return ModelReady(bytes=160, tensors=2, digest="initial")
        case "f":
            return folded(int(token[1:]))
        case "r":
            number = int(token[1:]) if token[1:] else None
            return RunResumed(round=number, effect=number or 0)
        case "t":
            number, site = token[1:].split(".")
            return UpdateTakenUp(round=int(number), site=f"site-{site}")
        case "o":
            return RoundStarted(round=1, sites=sites)
        case "a":
            return SitesBeganAnew(round=1, sites=sites)
    value, site, number = (token + ".1.1").split(".")[:3]
    return SiteLog(round=int(number), site=f"site-{site}", key="loss", value=float(value))


def counting(path, journal, torn=b""):
    """The values that count of those that were logged."""
    events = map(event_of, journal.split())
    path.write_bytes(encode_lines(events) + torn)
    points = (line.event for line in Journal(path) if line.counts)
    return [event.value for event in points if isinstance(event, SiteLog)]


KILLS = " ".join(f"{100 + attempt} r1" for attempt in range(20))


@pytest.mark.parametrize(
    ("journal", "due"),
    [
        ("S M 1 2 f1 3 r1 4 5 f2 6", [1, 2, 4, 5, 6]),
        (f"S M 1 f1 {KILLS} 2 f2", [1, 2]),
        # From nothing, from the initial model, and over several effects.
        ("1 S M 2 r 3 M", [3]),
        ("S M 1 f1 2 f2 3 r1 4", [1, 4]),
        # An update that is taken up keeps its points, also at the next kill.
        ("S M 1 2 3.2 r0 t1.1 4.2 f1", [1, 2, 4]),
        ("S M 1 2.2 r0 t1.1 3.2 r0 t1.1 t1.1 4.2 f1", [1, 4]),
        ("S M 1 2.1.2 r0 t2.1", [2]),
        # Sites that begin a task anew leave the points of the last attempt.
        ("S M 1 o12 2 3.2 4.3 a12 5 f1 6 a1 7", [1, 4, 5, 7]),
    ],
)
def test_of_what_was_done_again_the_last_attempt_counts(tmp_path, journal, due):
    assert counting(tmp_path / "events.jsonl", journal) == due


def test_a_torn_line_is_no_point(tmp_path):
    assert counting(tmp_path / "events.jsonl", "S M 1", torn=b'{"kind":"site_log","val') == [1]
