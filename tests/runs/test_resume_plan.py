"""Where a run goes on: the newest sound model, and all that came before it."""

import fcntl
import multiprocessing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_support import DIGESTS, EffectScript, a_job, a_run, flip, model, results
from nightly_cases import first_and_nightly

from flstream.errors import SimulationError
from flstream.job import Job, render_job
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.digests import body_digest
from flstream.runs.history import History
from flstream.runs.job_facts import JobFacts
from flstream.runs.journal import read_history
from flstream.runs.resume import (
    ResumePoint,
    final_summary,
    plan_resume,
    take_up,
)
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import RunningSummary, Summary, summarize
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    ModelReady,
    ModelWritten,
    RunFinished,
    RunResumed,
    encode_event,
)


def begun(job: Job) -> RunningSummary:
    return RunningSummary(History(JobFacts.of(job)))


def finish(run: RunDirectory, rounds: int) -> None:
    with EventLog(run.events) as log:
        log.write(RunFinished(status="finished"))
    for name in (run.final_model, run.best_model):
        run.publish(run.checkpoint(rounds), name)


def scores(point: ResumePoint) -> list[tuple[int, float | None]]:
    """Rounds whose evaluation counts, and the accuracy."""
    found = History.of(point.events).evaluations
    return [(number, metrics["accuracy"]) for number, metrics in found]


def test_a_run_goes_on_after_its_last_completed_round(tmp_path):
    run, script = a_run(tmp_path / "run", rounds=5, completed=3), EffectScript(5, 1)
    for event in script.opened(4):
        with EventLog(run.events) as log:
            log.write(event)
    point = plan_resume(a_job(5), run)
    assert (point.round, point.effect, point.checkpoint) == (3, 9, run.checkpoint(3))
    assert [record.effect for record in point.records] == list(range(1, 10))
    assert point.initial == DIGESTS[0]
    assert not point.is_finished
    assert point.warnings == []
    assert point.leftovers == []
    assert scores(point) == [(1, 2.0), (2, 1.0), (3, None)]
    assert summarize(read_history(run.events)).rounds_completed == 3


def test_a_training_that_no_later_effect_made_final_is_done_again(tmp_path):
    run, script = a_run(tmp_path / "run", rounds=5, completed=3), EffectScript(5, 1)
    *until_trained, _, _, _, _, _ = script.round(4)
    with EventLog(run.events) as log:
        for event in until_trained:
            log.write(event)
    assert read_history(run.events).totals.has_effect(10)
    point = plan_resume(a_job(5), run)
    assert (point.round, point.effect) == (3, 9)
    assert point.records[-1].effect == 9


def test_an_evaluation_whose_effect_is_not_in_the_journal_is_still_to_be_done(tmp_path):
    run = a_run(tmp_path / "run", completed=2)
    lines = run.events.read_bytes().splitlines(keepends=True)
    # The last line but the round's end, which is the evaluation's effect, is torn.
    run.events.write_bytes(b"".join([*lines[:-2], lines[-2][:-5]]))
    point = plan_resume(a_job(), run)
    assert (point.round, point.effect) == (2, EffectScript(3, 1).last_effect(2) - 1)
    assert scores(point) == [(1, 2.0)]
    # The torn line is gone, so that what comes next is a line of its own.
    assert run.events.read_bytes() == b"".join(lines[:-2])


def test_a_round_whose_model_has_no_whole_record_did_not_happen(tmp_path):
    run = a_run(tmp_path / "run", completed=2, every=0)
    lines = run.events.read_bytes().splitlines(keepends=True)
    run.events.write_bytes(b"".join([*lines[:-2], lines[-2][:-1]]))
    point = plan_resume(a_job(every=0), run)
    assert (point.round, point.effect) == (1, 2)
    assert point.leftovers == [run.checkpoint(2)]


def test_a_round_that_was_not_ended_in_the_journal_counts_with_its_effects(tmp_path):
    run = a_run(tmp_path / "run", completed=2)
    lines = run.events.read_bytes().splitlines(keepends=True)
    run.events.write_bytes(b"".join([*lines[:-1], lines[-1][:-1]]))
    point = plan_resume(a_job(), run)
    assert (point.round, point.effect) == (2, 6)
    assert scores(point) == [(1, 2.0), (2, 1.0)]


def test_nothing_completed_begins_from_the_beginning(tmp_path):
    run = RunDirectory.create("job", tmp_path / "run")
    assert plan_resume(a_job(), run) is None
    run.write(run.job_file, render_job(a_job()))
    run.events.write_bytes(b'{"kind":"process_re')
    assert plan_resume(a_job(), run) is None
    assert run.events.read_bytes() == b""
    with EventLog(run.events) as log:
        log.write(EffectScript(3, 1).started()[0])
    run.checkpoint(0).with_name("round-0000.safetensors.tmp").touch()
    point = plan_resume(a_job(), run)
    assert point.round is None
    assert point.warnings == []
    assert [path.name for path in point.leftovers] == ["round-0000.safetensors.tmp"]


def test_a_run_is_taken_up_by_its_journal_and_nothing_of_others_is_removed(tmp_path):
    run = a_run(tmp_path / "run", rounds=5, completed=3)
    with EventLog(run.events) as log:
        log.write(ModelWritten(round=4, step=0))
    keep = [
        "notes.txt",
        "round-0009.txt",
        "round-0002.optimizer.safetensors",
        "my.safetensors",
        "round-0005.safetensors",
        "round-12345.safetensors",
        "round-0004.step-00.safetensors",
    ]
    gone = [
        "round-0004.safetensors",
        "round-0004.optimizer.safetensors",
        "round-0003.safetensors.tmp",
    ]
    for name in [*keep, *gone]:
        (run.checkpoints / name).touch()
    (run.site("site-1")).mkdir()
    (run.site("site-1") / "state.tmp").touch()
    run.summary.write_text("{}")
    run.publish(run.checkpoint(3), run.final_model)
    run.publish(run.checkpoint(1), run.best_model)
    point = plan_resume(a_job(5), run)
    ends = [run.final_model, run.best_model, run.summary]
    assert point.leftovers == [*(run.checkpoints / name for name in gone), *ends]
    running = take_up(a_job(5), run, point)
    assert not any(path.exists() for path in point.leftovers)
    assert all((run.checkpoints / name).exists() for name in keep)
    assert (run.site("site-1") / "state.tmp").exists()
    assert body_digest(FileSource(run.checkpoint(3))) == DIGESTS[3]
    last = read_history(run.events).events()[-1]
    assert (last.round, last.effect) == (3, 9)
    assert running.summary.status == "running"
    assert running.summary.model.digest == DIGESTS[3]


def test_a_finished_run_has_nothing_left_and_keeps_its_summary(tmp_path):
    run = a_run(tmp_path / "run")
    finish(run, 3)
    before = run.events.read_bytes()
    point = plan_resume(a_job(), run)
    assert point.is_finished
    assert (point.round, point.effect, point.leftovers) == (3, 9, ())
    # It was killed before it had written a summary: this is made of its events.
    made = final_summary(a_job(), run, point)
    assert (made.status, made.rounds_completed) == ("finished", 3)
    assert msgspec.json.decode(run.summary.read_bytes(), type=Summary) == made
    run.summary.write_text(msgspec.structs.replace(made, wall_seconds=77.0).to_json())
    assert final_summary(a_job(), run, point).wall_seconds == 77.0
    run.summary.write_text("{")
    with pytest.raises(SimulationError, match="remove it, and it is made again"):
        final_summary(a_job(), run, point)
    assert run.events.read_bytes() == before


def test_a_finished_run_goes_on_if_the_job_has_more_rounds(tmp_path):
    run = a_run(tmp_path / "run")
    finish(run, 3)
    point = plan_resume(a_job(5), run)
    assert (point.round, point.is_finished) == (3, False)
    # Killed once the job was written out anew: it is still not finished.
    run.write(run.job_file, render_job(a_job(5)))
    assert not plan_resume(a_job(5), run).is_finished
    take_up(a_job(5), run, point)
    assert not plan_resume(a_job(5), run).is_finished


@pytest.mark.nightly
@first_and_nightly("is_finished", [True, False])
def test_an_evaluation_made_because_a_round_was_the_last_is_void_once_it_is_not(
    tmp_path, is_finished
):
    run = a_run(tmp_path / "run", rounds=4, every=3, completed=4)
    if is_finished:
        finish(run, 4)
    script = EffectScript(8, 3, DIGESTS)
    point = plan_resume(a_job(8, every=3), run)
    assert (point.round, point.effect) == (4, script.last_effect(4))
    assert scores(point) == [(3, None)]
    # However often it is cut off from then on.
    summary = take_up(a_job(8, every=3), run, point).summary
    assert summary.metrics[-1] == {"round": 3, "train": {"loss": 1 / 3}, "accuracy": None}
    run.write(run.job_file, render_job(a_job(8, every=3)))
    for _ in range(2):
        assert plan_resume(a_job(8, every=3), run).events == read_history(run.events).events()
        with EventLog(run.events) as log:
            for event in script.events_after(point.effect):
                if event.__struct_config__.tag != "round_started" or event.round < 6:
                    log.write(event)
                else:
                    break
        write_checkpoint(run.checkpoint(5), model(5))
        point = plan_resume(a_job(8, every=3), run)
        assert (point.round, scores(point)) == (5, [(3, None)])
        flip(run.checkpoint(5))
        point = plan_resume(a_job(8, every=3), run)
        assert (point.round, scores(point)) == (4, [(3, None)])
        # Its training still counts; where the updates are lost, it is repeated as it was.
        assert point.effect == script.first_effect(5)
        take_up(a_job(8, every=3), run, point)


def test_an_evaluation_that_a_longer_job_has_too_counts(tmp_path):
    run = a_run(tmp_path / "run", rounds=4, every=2, completed=4)
    finish(run, 4)
    point = plan_resume(a_job(7, every=2), run)
    assert (point.round, point.effect) == (4, EffectScript(7, 2).last_effect(4))
    assert [number for number, _ in scores(point)] == [2, 4]


def test_a_run_that_has_completed_no_round_goes_on(tmp_path):
    run = a_run(tmp_path / "run", completed=0)
    with EventLog(run.events) as log:
        for event in EffectScript(3, 1).opened(1):
            log.write(event)
    point = plan_resume(a_job(), run)
    assert (point.round, point.effect, point.records, point.initial) == (0, 0, [], DIGESTS[0])
    assert take_up(a_job(), run, point).summary.model.digest == DIGESTS[0]
    assert plan_resume(a_job(), run).round == 0


def test_a_run_whose_rounds_are_done_but_not_its_end_is_not_finished(tmp_path):
    run = a_run(tmp_path / "run", rounds=3, completed=3)
    point = plan_resume(a_job(3), run)
    assert (point.round, point.is_finished) == (3, False)


@pytest.mark.nightly
@given(
    kills=st.lists(
        st.tuples(
            st.integers(0, 25),
            st.integers(0, 300),
            st.none() | st.integers(0, 4),
            st.integers(0, 2),
        ),
        max_size=4,
    )
)
@settings(max_examples=12)
def test_a_run_killed_and_damaged_again_and_again_ends_like_one_that_was_not(
    kills, tmp_path_factory
):
    """Real files: sittings are cut off in the middle of a line, and models damaged in between.

    Round 0's is spared, since without any model the run would be refused. Now and then the job is
    given more rounds.
    """
    rounds = 3
    run = RunDirectory.create("job", tmp_path_factory.mktemp("runs") / "run")
    for count, torn, damaged, more in [*kills, (1000, 0, None, 0)]:
        rounds = min(rounds + more, 8)
        job, script = a_job(rounds, every=2), EffectScript(rounds, 2, DIGESTS)
        point = plan_resume(job, RunDirectory.reopen("job", run.path))
        if point is not None and point.is_finished:
            continue
        run.write(run.job_file, render_job(job))
        running = take_up(job, run, point) if point is not None else begun(job)
        effect = None if point is None or point.round is None else point.effect
        sitting = list(script.events_after(effect))
        for event in sitting[:count]:
            with EventLog(run.events) as log:
                log.write(event)
            running.apply(event)
            if isinstance(event, ModelReady):
                write_checkpoint(run.checkpoint(0), model(0))
            elif isinstance(event, ModelWritten):
                write_checkpoint(run.checkpoint(event.round), model(event.round))
        if count < len(sitting):
            with run.events.open("ab") as file:
                file.write(encode_event(sitting[count])[:torn])
        if damaged and run.checkpoint(damaged).exists():
            flip(run.checkpoint(damaged))
    whole = begun(job)
    for event in script.events():
        whole.apply(event)
    # The journal says the same as the process that wrote the last of it.
    for summary in (running.summary, summarize(read_history(run.events))):
        warned = [each for each in summary.warnings if not each.startswith("the run went on from")]
        assert results(msgspec.structs.replace(summary, warnings=warned)) == results(whole.summary)


def test_seconds_of_all_sittings_add_up(tmp_path):
    run = a_run(tmp_path / "run", completed=1)
    point = plan_resume(a_job(), run)
    running = take_up(a_job(), run, point._replace(seconds=40.0))
    assert running.close({}, 0, 2.5).wall_seconds == 42.5


def _write_once_told(path: Path, told) -> None:
    with EventLog(path) as log:
        told.send("locked")
        told.recv()
        log.write(RunResumed(round=3), durable=True)


def test_a_plan_waits_for_a_server_that_outlived_its_launcher(tmp_path):
    run = a_run(tmp_path / "run")
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=_write_once_told, args=(run.events, theirs))
    server.start()
    assert ours.recv() == "locked"
    with pytest.raises(SimulationError, match="another process still writes"):
        EventLog(run.events)
    ours.send("go on")
    # However long it takes, what it wrote last is in the plan.
    assert plan_resume(a_job(), run).events[-1] == read_history(run.events).events()[-1]
    assert plan_resume(a_job(), run).events[-1].__struct_config__.tag == "run_resumed"
    server.join()


def test_patience_with_a_writer_ends_and_leaves_no_lock_behind(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path), pytest.raises(SimulationError, match="wait until it has ended"):
        EventLog(path, patience=0.05)
    # Whoever waited in vain has let go of it, too.
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
