"""What a bench takes from the journal of a run that has finished."""

from flstream.bench.running import FinishedRun
from flstream.runs.journal import read_history
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.telemetry.events import (
    ModelReady,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    Transfer,
    encode_lines,
)


def finished(number, time):
    cost = Transfer(bytes=100 * number, requests=number)
    seconds = (1.0 * number, 2.0, 3.0, 4.0)
    return RoundFinished(number, f"digest-{number}", *seconds, {}, {}, cost, cost, time=time)


EVENTS = [
    ProcessReady(process="server", pid=1, idle_rss=10, time=100.5),
    ModelReady(bytes=16, tensors=1, digest="digest-0", time=101.0),
    ProcessReady(process="site-1", pid=2, idle_rss=10, time=101.5),
    RoundStarted(round=1, sites=["site-1"], time=102.0),
    finished(1, 112.0),
    RoundStarted(round=2, sites=["site-1"], time=113.0),
    finished(2, 124.0),
]


def test_times_of_processes_and_rounds_are_those_of_the_journal(tmp_path):
    run = RunDirectory(tmp_path)
    lines = encode_lines(EVENTS)
    run.events.write_bytes(lines)
    found = FinishedRun(run, Summary(), read_history(run.events, note_lines_of=[ProcessReady]))
    assert found.ready == {"server": 100.5, "site-1": 101.5}
    assert found.began == 102.0
    assert (found.history.rounds[-1].down.bytes, found.history.rounds[-1].download) == (200, 2.0)
