"""Where a run goes on: a journal, and what was damaged, go in; a plan or a refusal comes out."""

import fcntl
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from journal_support import (
    DIGESTS,
    SITES,
    EffectScript,
    a_job,
    a_run,
    flip,
    fold_record,
    model,
    optimizer_state,
    train_record,
)

from flstream.errors import ResumeRefusedError, SimulationError, UsageError
from flstream.job import render_job
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.digests import body_digest
from flstream.model.order import ORDER
from flstream.runs.job_match import render_files
from flstream.runs.journal import read_history
from flstream.runs.results import StateVersion
from flstream.runs.resume import final_summary, plan_resume, take_up
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary, summarize
from flstream.telemetry.event_log import EventLog, await_writer
from flstream.telemetry.events import (
    ModelRecord,
    ModelWritten,
    RunFinished,
    RunResumed,
)
from flstream.worker.state import SiteState


def log_events(run, events):
    with EventLog(run.events) as log:
        for event in events:
            log.write(event)


def finish(run, rounds):
    log_events(run, [RunFinished(status="finished")])
    for name in (run.final_model, run.best_model):
        run.publish(run.checkpoint(rounds), name)


def scores(run, point):
    """Rounds whose evaluation counts once the run goes on, and the accuracy."""
    copy = run.path / "events.copy"
    copy.write_bytes(run.events.read_bytes())
    with EventLog(copy, end=point.end) as log:
        log.write(RunResumed(round=point.round, effect=point.effect))
    evaluations = read_history(copy).scores
    return [(number, metrics["accuracy"]) for number, metrics in evaluations.items()]


def write_job(run, job):
    run.write(run.job_files, render_files(job))
    run.write(run.job_file, render_job(job))


def there(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


# How the journal ends

TRAINED = EffectScript(5, 1).round(4)[:4]  # until the training's record


@pytest.mark.parametrize(
    ("every", "completed", "cut", "more", "due", "leftovers"),
    [
        (1, 3, 0, EffectScript(5, 1).opened(4), (3, 9), []),
        (1, 3, 0, TRAINED, (3, 10), []),
        # Torn are the evaluation's record, that of the model, and the end of the round.
        (1, 2, 2, [], (2, 5), []),
        (0, 2, 2, [], (1, 3), ["round-0002.safetensors"]),
        (1, 2, 1, [], (2, 6), []),
    ],
)
def test_a_run_goes_on_after_its_last_whole_effect(
    tmp_path, every, completed, cut, more, due, leftovers
):
    run = a_run(tmp_path / "run", rounds=5, completed=completed, every=every)
    lines = run.events.read_bytes().splitlines(keepends=True)
    if cut:
        run.events.write_bytes(b"".join([*lines[:-cut], lines[-cut][:-1]]))
    log_events(run, more)
    point = plan_resume(a_job(5, every=every), run)
    assert (point.round, point.effect) == due
    assert [record.effect for record in point.records] == list(range(1, point.effect + 1))
    assert [path.name for path in point.leftovers] == leftovers
    assert (point.initial, point.is_finished, point.warnings) == (DIGESTS[0], False, [])
    evaluated = [(1, 2.0), (2, 1.0), (3, None)][: (point.effect // 3) if every else 0]
    assert scores(run, point) == evaluated
    take_up(a_job(5, every=every), run, point)
    # A torn line is gone, so that what comes next is a line of its own.
    assert read_history(run.events).resumes


def test_nothing_completed_begins_from_the_beginning(tmp_path):
    run = RunDirectory.create("job", tmp_path / "run")
    assert plan_resume(a_job(), run) is None
    write_job(run, a_job())
    run.events.write_bytes(b'{"kind":"process_re')
    assert plan_resume(a_job(), run) is None
    assert run.events.read_bytes() == b'{"kind":"process_re'  # nothing is changed yet
    log_events(run, EffectScript(3, 1).started()[:1])
    run.checkpoint(0).with_name("round-0000.safetensors.tmp").touch()
    point = plan_resume(a_job(), run)
    assert (point.round, point.warnings) == (None, [])
    assert [path.name for path in point.leftovers] == ["round-0000.safetensors.tmp"]


def test_a_run_is_taken_up_by_its_journal_and_nothing_of_others_is_removed(tmp_path):
    run = a_run(tmp_path / "run", rounds=5, completed=3)
    log_events(run, [ModelWritten(round=4, step=0)])
    keep = ["notes.txt", "round-0009.txt", "round-0002.optimizer.safetensors", "my.safetensors"]
    keep += ["round-0005.safetensors", "round-12345.safetensors", "round-0003.found-1.safetensors"]
    keep += ["round-0004.step-01.safetensors", "round-0002.step-00.optimizer.safetensors"]
    gone = ["round-0004.safetensors", "round-0004.optimizer.safetensors"]
    gone += ["round-0004.step-00.safetensors", "round-0003.safetensors.tmp"]
    for name in [*keep, *gone]:
        (run.checkpoints / name).touch()
    run.site("site-1").mkdir()
    (run.site("site-1") / "state.tmp").touch()
    run.summary.write_text("{}")
    run.publish(run.checkpoint(3), run.final_model)
    run.publish(run.checkpoint(1), run.best_model)
    point = plan_resume(a_job(5), run)
    ends = [run.final_model, run.best_model, run.summary]
    assert point.leftovers == [*(run.checkpoints / name for name in gone), *ends]
    running = summarize(take_up(a_job(5), run, point))
    assert not any(path.exists() for path in point.leftovers)
    assert all((run.checkpoints / name).exists() for name in keep)
    assert (run.site("site-1") / "state.tmp").exists()
    assert body_digest(FileSource(run.checkpoint(3))) == DIGESTS[3]
    [last] = read_history(run.events).resumes
    assert (last.round, last.effect) == (3, 9)
    assert (running.status, running.model.digest) == ("running", DIGESTS[3])


def test_logs_say_where_the_run_resumed_and_keep_what_came_after_it(tmp_path):
    run, job = a_run(tmp_path / "run", rounds=5, completed=2), a_job(5)
    site, server = run.site_log("site-1"), run.log("server")
    for path, text in ((site, "half a line"), (server, ""), (run.log("mine"), "mine")):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    run.site("site-2").mkdir()
    run.site_log("site-2").symlink_to("/dev/full")
    for _ in range(2):
        take_up(job, run, plan_resume(job, run))
    assert site.read_text() == "half a line" + "\nflstream: resumed at effect 6\n" * 2
    assert (server.read_text(), run.log("mine").read_text()) == ("", "mine")
    assert not run.site_log("site-3").exists()


# What was finished


def test_a_finished_run_has_nothing_left_and_keeps_its_summary(tmp_path):
    run = a_run(tmp_path / "run")
    assert not plan_resume(a_job(), run).is_finished  # its rounds are done, and not its end
    finish(run, 3)
    before = run.events.read_bytes()
    point = plan_resume(a_job(), run)
    assert (point.round, point.effect, point.is_finished, point.leftovers) == (3, 9, True, ())
    # It was killed before it had written a summary: this is made of its events.
    made = final_summary(run, point)
    assert (made.status, made.rounds_completed) == ("finished", 3)
    assert msgspec.json.decode(run.summary.read_bytes(), type=Summary) == made
    run.summary.write_text(msgspec.structs.replace(made, wall_seconds=77.0).to_json())
    assert final_summary(run, point).wall_seconds == 77.0
    run.summary.write_text("{")
    with pytest.raises(ResumeRefusedError, match="remove it, and it is made again"):
        final_summary(run, point)
    assert run.events.read_bytes() == before


def test_a_finished_run_goes_on_if_the_job_has_more_rounds(tmp_path):
    run = a_run(tmp_path / "run")
    finish(run, 3)
    point = plan_resume(a_job(5), run)
    assert (point.round, point.is_finished) == (3, False)
    # Killed once the job was written out anew: it is still not finished.
    write_job(run, a_job(5))
    assert not plan_resume(a_job(5), run).is_finished
    take_up(a_job(5), run, point)
    assert not plan_resume(a_job(5), run).is_finished


@pytest.mark.parametrize(("every", "rounds", "due"), [(3, 8, [3]), (2, 7, [2, 4])])
def test_an_evaluation_made_because_a_round_was_the_last_is_void_once_it_is_not(
    tmp_path, every, rounds, due
):
    run = a_run(tmp_path / "run", rounds=4, every=every, completed=4)
    finish(run, 4)
    job = a_job(rounds, every=every)
    point = plan_resume(job, run)
    assert (point.round, point.effect) == (4, EffectScript(rounds, every).last_effect(4))
    assert [number for number, _ in scores(run, point)] == due
    assert plan_resume(job, run, 4).effect == point.effect
    # However often it is cut off from then on.
    take_up(job, run, point)
    write_job(run, job)
    assert [number for number, _ in scores(run, plan_resume(job, run))] == due


# What was damaged


def replace(path):
    write_checkpoint(path, model(7))


def reorder(path):
    """Have the header alone list the tensors in another order, for training code."""
    write_checkpoint(path, model(3), {ORDER: "[1,0]"})


MODEL, STATE = "round-0003.safetensors", "round-0003.optimizer.safetensors"


@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        (MODEL, flip, "has the digest"),
        (MODEL, Path.unlink, "No such file"),
        (MODEL, replace, DIGESTS[7]),
        (MODEL, reorder, "in another order"),
        (STATE, flip, "has the digest"),
        (STATE, Path.unlink, "No such file"),
    ],
)
def test_a_damaged_model_or_optimizer_state_is_refused_and_an_earlier_round_named(
    tmp_path, name, harm, words
):
    run = a_run(tmp_path / "run", rounds=5, completed=3, optimizer=True)
    assert plan_resume(a_job(5), run).round == 3
    harm(run.checkpoints / name)
    before = run.events.read_bytes(), there(run)
    with pytest.raises(ResumeRefusedError) as caught:
        plan_resume(a_job(5), run)
    assert (run.events.read_bytes(), there(run)) == before
    assert name in str(caught.value)
    assert words in str(caught.value)
    assert str(caught.value).endswith(
        "round 2 is whole, and --resume --from-round 2 goes back to its end"
    )
    point = plan_resume(a_job(5), run, 2)
    assert (point.round, point.effect) == (2, EffectScript(5, 1).last_effect(2))
    assert [number for number, _ in scores(run, point)] == [1, 2]
    assert summarize(take_up(a_job(5), run, point)).rounds_completed == 1  # it ends with the next
    sides = [optimizer_state(run, number).name for number in (1, 2)]
    assert there(run) == sorted([*(run.checkpoint(n).name for n in (0, 1, 2)), *sides])


def test_a_run_goes_back_to_the_end_of_any_round_that_it_has(tmp_path):
    run = a_run(tmp_path / "run", rounds=5, completed=3)
    finish(run, 3)
    points = [plan_resume(a_job(3), run, number) for number in range(4)]
    assert [point.round for point in points] == [0, 1, 2, 3]
    assert [point.effect for point in points] == [0, 3, 6, 9]
    assert not any(point.is_finished for point in points)
    for number in (-1, 4):
        with pytest.raises(UsageError, match=f"--from-round {number} names no round .* 0 to 3"):
            plan_resume(a_job(3), run, number)
    flip(run.checkpoint(1))
    with pytest.raises(ResumeRefusedError, match="round 0 is whole"):
        plan_resume(a_job(3), run, 1)
    empty = RunDirectory.create("job", tmp_path / "empty")
    with pytest.raises(UsageError, match="which has none"):
        plan_resume(a_job(3), empty, 0)


@pytest.mark.parametrize("lost", ["all models", "the optimizer's state", "the journal"])
def test_rounds_are_not_thrown_away_when_nothing_is_left_to_go_on_from(tmp_path, lost):
    run = a_run(tmp_path / "run", rounds=5, completed=3, optimizer=True)
    words = str(run.checkpoint(3))
    if lost == "all models":
        for path in run.checkpoints.iterdir():
            flip(path)
    elif lost == "the optimizer's state":  # as where only the last checkpoint is kept
        for number in (0, 1, 2):
            run.checkpoint(number).unlink()
        flip(optimizer_state(run, 3))
        words = str(optimizer_state(run, 3))
    else:
        run.events.unlink()
        write_job(run, a_job(5))
        run, words = RunDirectory.reopen("job", run.path), "put that back from a copy"
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(ResumeRefusedError) as caught:
        plan_resume(a_job(5), run)
    assert words in str(caught.value)
    assert "--from-round" not in str(caught.value)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_an_initial_model_that_is_damaged_is_built_anew(tmp_path):
    run = a_run(tmp_path / "run", completed=0)
    # It was only evaluated.
    log_events(run, [msgspec.structs.replace(e, round=0) for e in EffectScript(3, 1).evaluation(1)])
    assert plan_resume(a_job(), run)[:2] == (0, 3)
    flip(run.checkpoint(0))
    point = plan_resume(a_job(), run)
    assert (point.round, point.effect, point.records) == (None, 0, [])
    assert point.warnings[0].startswith("the initial model was built anew")
    assert point.leftovers == [run.checkpoint(0)]
    assert take_up(a_job(), run, point).model_bytes == 0
    assert plan_resume(a_job(), run).round is None


# Rounds of several models


def a_relay(folder):
    """Two rounds of two sites that train in turn, each on the other's model: effects 1 to 8."""
    run = a_run(folder, rounds=9, completed=0, every=0)
    events = []
    for number in (1, 2):
        for step, site in enumerate(SITES):
            version = 2 * (number - 1) + step + 1
            effect = 2 * version - 1
            record = ModelRecord(number, version, step, DIGESTS[version])
            events.append(train_record(effect, number, sites=[site]))
            events.append(ModelWritten(round=number, step=step))
            events.append(fold_record(effect + 1, record, effect, [site]))
            if step:
                run.checkpoint(number).rename(run.step_checkpoint(number, step - 1))
            write_checkpoint(run.checkpoint(number), model(version))
        events.append(EffectScript(9, 0, DIGESTS).finished(number))
    log_events(run, events)
    return run


def test_a_run_goes_back_to_the_end_of_a_round_with_several_models(tmp_path):
    run, job = a_relay(tmp_path / "run"), a_job(9, every=0)
    assert plan_resume(job, run)[:2] == (2, 8)
    flip(run.checkpoint(2))
    with pytest.raises(ResumeRefusedError, match="round 1 is whole"):
        plan_resume(job, run)
    point = plan_resume(job, run, 1)
    assert (point.round, point.effect) == (1, 4)
    take_up(job, run, point)
    kept = [run.checkpoint(0), run.step_checkpoint(1, 0), run.checkpoint(1)]
    assert there(run) == sorted(path.name for path in kept)


# States of sites


def a_run_with_states(folder, effects):
    """A run of these effects, and the versions of states that they have left, by site and effect.

    `t3:12` is a training of site-1 and site-2 as effect 3; with `-` at its end none of them has
    asked for its state. `f4=3:12` is a fold of effect 3, of which `!1` refuses site-1; `e5`
    evaluates.
    """
    run = a_run(folder, rounds=9, completed=0, every=1)
    script = EffectScript(9, 1, DIGESTS)
    newest: dict[str, StateVersion | None] = {}
    versions, events, folds = {}, [], 0
    for text in effects.split():
        head, _, sites = text.partition(":")
        number = int(head[1:].partition("=")[0])
        who = [f"site-{digit}" for digit in sites.partition("!")[0].rstrip("-")]
        if text[0] == "t":
            for site in [] if text.endswith("-") else who:
                state = SiteState(str(run.site(site)), number, newest.get(site), is_kept=True)
                (state.path / "notes").write_text(text)
                newest[site] = versions[f"{number}:{site[-1]}"] = state.keep()
            kept = {site: versions[f"{number}:{site[-1]}"] for site in who if text[-1] != "-"}
            events.append(train_record(number, folds + 1, kept, who))
        elif text[0] == "f":
            folds += 1
            refused = {f"site-{digit}": "no" for digit in sites.partition("!")[2]}
            record = ModelRecord(folds, folds, 0, DIGESTS[folds])
            trained = int(head.partition("=")[2])
            events.append(fold_record(number, record, trained, who, refused))
            events.append(script.finished(folds))
            write_checkpoint(run.checkpoint(folds), model(folds))
        else:
            evaluated, done = script.evaluation(folds)
            events += [evaluated, msgspec.structs.replace(done, effect=number)]
    log_events(run, events)
    return run, versions


@pytest.mark.parametrize(
    ("effects", "damaged", "due"),
    [
        ("t1:12 f2=1:12", "1:2", "that of site-2 after effect 1: "),
        # Of a model that was trained later, each site needs what its own last training left.
        ("t1:1 f2=1:1 t3:1 f4=3:1", "3:1", "site-1 after effect 3"),
        ("t1:12 f2=1:12 t3:2 f4=3:2", "1:1", "site-1 after effect 1"),
        # States that the last trainings have left are needed as well.
        ("t1:1 f2=1:1 t3:1 e4", "3:1", "site-1 after effect 3"),
        ("t1:1 f2=1:1 t3:1- e4", "1:1", "site-1 after effect 1"),
        # A site whose update was refused, or left out, after it was read does not go back.
        ("t1:12 f2=1:12 t3:12 f4=3:12!1", "3:1", "site-1 after effect 3"),
        ("t1:12 f2=1:12 t3:12 f4=3:12!1", "1:1", 4),
        ("t1:12 f2=1:12 t3:12 f4=3:1", "3:2", "site-2 after effect 3"),
        # Of two trainings that wait, the last has left the state.
        ("t1:1 t2:1 f3=1:1", "2:1", "site-1 after effect 2"),
        ("t1:1 t2:1 f3=1:1", "1:1", 3),
        ("t1:1 t2:1 f3=1:1 f4=2:1", "1:1", 4),
    ],
)
def test_a_run_needs_the_states_that_a_replay_uses_and_no_others(tmp_path, effects, damaged, due):
    run, versions = a_run_with_states(tmp_path / "run", effects)
    folder = run.site(f"site-{damaged[-1]}") / "state" / versions[damaged].folder_name
    (folder / "notes").write_text("other")
    if isinstance(due, int):
        assert plan_resume(a_job(9), run).effect == due
    else:
        with pytest.raises(ResumeRefusedError, match=due):
            plan_resume(a_job(9), run)


# Who else writes


LATE_SERVER = """
import sys
from pathlib import Path
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import RunResumed
with EventLog(Path(sys.argv[1])) as log:
    print("locked", flush=True)
    input()
    log.write(RunResumed(round=3, effect=9), durable=True)
"""


def test_a_plan_waits_for_a_server_that_outlived_its_launcher(tmp_path):
    run = a_run(tmp_path / "run")
    command = [sys.executable, "-c", LATE_SERVER, run.events]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "locked\n"
    with pytest.raises(SimulationError, match="another process still writes"):
        EventLog(run.events)
    with pytest.raises(SimulationError, match="wait until it has ended"):
        await_writer(run.events, 0.05)
    server.stdin.write("go on\n")
    server.stdin.flush()
    # However long it takes, what it wrote last is in the plan.
    assert plan_resume(a_job(), run) is not None
    assert read_history(run.events).resumes
    server.communicate()
    # Whoever waited in vain has let go of the lock, too.
    with run.events.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
