"""What is read of a run directory: all of it, whatever became of the run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_directories import (
    BEGAN,
    MIB,
    ended,
    finished_run,
    one_round,
    samples,
    started,
    summary_of,
    write_run,
)

from flstream.report.run_record import read_run
from flstream.telemetry.events import RoundStarted, RunResumed, SiteFailed, SiteSuspended


def test_a_finished_run_has_its_summary_its_settings_and_what_its_sites_did(tmp_path):
    run = read_run(finished_run(tmp_path / "run"))
    assert (run.status, run.summary, run.notes) == ("finished", summary_of(), [])
    site = run.history.sites["site-2"]
    assert (site.updates, site.weight, site.failures) == (3, 60.0, 0)
    assert (site.downloads, site.trains, site.slowest) == (6.0, 15.0, 5.0)
    assert run.seconds == 38.0
    assert run.memory.peak("site-2") == 190 * MIB
    assert run.settings["clients.count"].value == "2"
    assert not run.settings["rounds"].is_default
    assert run.settings["streaming.mode"].is_default


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.conf", b"rounds = {"),
        ("job.conf", b"\xff\xfe rounds"),
        ("summary.json", b'{"status": "fini'),
        ("versions.json", b"{"),
        ("cross_site/cross_val_results.json", b"[1]"),
    ],
)
def test_a_damaged_file_is_noted_and_the_rest_is_told(tmp_path, name, text):
    folder = finished_run(tmp_path / "run")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(text)
    run = read_run(folder)
    assert (run.status, run.summary.rounds_completed) == ("finished", 3)
    assert (run.settings == {}) is (name == "job.conf")
    assert f"{folder.joinpath(name).name} is damaged" in run.notes[0]
    run = read_run(write_run(tmp_path / "empty", []))
    assert (run.status, run.summary.rounds, run.seconds) == ("unfinished", [], 0.0)


def test_a_run_that_was_killed_is_told_from_its_events_and_samples(tmp_path):
    folder = write_run(
        tmp_path / "run",
        [*started(), *one_round(1, BEGAN + 2), RoundStarted(round=2, sites=[], time=BEGAN + 14)],
        samples(BEGAN, BEGAN + 20, "server", 130 * MIB),
    )
    for name in ("events.jsonl", "memory.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"kind":"round_fin')  # cut off in mid-line
    run = read_run(folder)
    assert run.status == "unfinished"
    assert (run.summary.rounds_completed, run.history.round_under_way) == (1, 2)
    assert run.summary.metrics == [{"accuracy": 0.6, "round": 1, "train": {"loss": 1.0}}]
    assert run.summary.best is not None
    assert run.summary.best.value == 0.6
    assert run.summary.memory.server.idle_rss == 100 * MIB
    assert run.summary.memory.server.peak_rss == 130 * MIB
    assert run.seconds == 20.0
    [note] = run.notes
    assert "no summary.json" in note


def test_the_hours_between_sittings_do_not_count_and_what_was_cut_off_does(tmp_path):
    late = {"round": 3, "site": "site-2", "time": BEGAN + 10_014}
    folder = write_run(
        tmp_path / "run",
        [
            *started(),
            *one_round(1, BEGAN + 2),
            RunResumed(round=1, effect=1, time=BEGAN + 10_000, until=BEGAN + 25),
            *started(BEGAN + 10_001)[:2],
            *one_round(2, BEGAN + 10_002),
            *[SiteFailed(reason=f"reason {n}", **late) for n in (1, 2)],
            SiteSuspended(failures=2, **late),
            *ended(BEGAN + 10_014),
        ],
        [
            *samples(BEGAN, BEGAN + 30, "server", MIB),
            *samples(BEGAN + 10_000, BEGAN + 10_014, "server", MIB),
        ],
    )
    run = read_run(folder)
    assert (run.status, run.summary.rounds_completed) == ("finished", 2)
    assert [each.round for each in run.history.resumes] == [1]
    first, second = run.history.sites["site-1"], run.history.sites["site-2"]
    assert (first.updates, first.failures) == (2, 0)
    assert (second.failures, second.is_suspended) == (2, True)
    assert (run.resumed_at, run.seconds) == ([25.0], 39.0)


@pytest.mark.parametrize("name", ["events.jsonl", "memory.jsonl"])
@pytest.mark.parametrize("line", ['{"kind":"unheard_of"}', "\x00" * 50, "[" * 9999])
def test_damaged_lines_are_passed_over_and_counted(tmp_path, name, line):
    folder = finished_run(tmp_path / "run")
    lines = (folder / name).read_text().splitlines()
    (folder / name).write_text("\n".join([*lines[:4], line, *lines[4:], ""]))
    run = read_run(folder)
    [note] = run.notes
    assert note.startswith(f"{name} is damaged: 1 line ")
    assert run.memory.peak("site-2") == 190 * MIB
    assert run.history.sites["site-2"].updates == 3


def test_a_journal_that_is_missing_or_cut_and_an_empty_summary_are_told(tmp_path):
    folder = finished_run(tmp_path / "run")
    summary = folder / "summary.json"
    summary.write_text('{"status": "finished", "rounds_completed": 9}')
    assert list(read_run(folder).notes) == ["events.jsonl is cut off: it has 3 of 9 rounds."]
    summary.write_text("{}")
    [note] = read_run(folder).notes
    assert note == "summary.json is damaged, so what it says is not shown."
    (folder / "events.jsonl").unlink()
    assert any(note.startswith("There is no events.jsonl") for note in read_run(folder).notes)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from("ab"), st.integers(0, 1 << 40))))
def test_no_peak_is_lost_however_many_samples_share_a_step(tmp_path, taken):
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").touch()
    taken = sorted(taken)
    lines = [json.dumps({"time": t, "process": p, "rss": rss}) + "\n" for t, p, rss in taken]
    (folder / "memory.jsonl").write_text("".join(lines))
    run = read_run(folder)
    for process in "ab":
        assert run.memory.peak(process) == max((r for _, p, r in taken if p == process), default=0)
    assert all(len(values) <= 768 for values in run.memory.rss.values())
    assert run.seconds == (taken[-1][0] - taken[0][0] if taken else 0)
