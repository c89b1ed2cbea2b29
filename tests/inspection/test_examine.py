"""Run directories and the cost of streaming."""

import os

import msgspec
import pytest
import torch
from journal_support import evaluated, flip, record, round_finished, run_started

from flstream.errors import CheckpointError
from flstream.inspection.examine import Count, StreamingCost, as_document, examine
from flstream.inspection.runs import inspect_run
from flstream.model.checkpoint import write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.runs.journal import read_journal
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    EffectDone,
    ModelReady,
    ModelRecord,
    RunFinished,
    RunResumed,
    SiteFailed,
    SitePhaseChanged,
    SiteUpdate,
    Transfer,
    decode_event,
    encode_lines,
)


def model_of(number):
    return MemoryBody.of({"w": torch.full((40,), float(number))})


def put(path, there):
    """Have a file stand there in the place of what does."""
    there.unlink(missing_ok=True)
    there.hardlink_to(path)


def write_events(run, events):
    with EventLog(run / "events.jsonl") as log:
        for event in events:
            log.write(event)


def verified_in(path):
    return examine(path, verify=True).verified or ()


@pytest.fixture
def run(tmp_path):
    """A run directory of three rounds, of which the last is the final model."""
    paths = [tmp_path / "checkpoints" / f"round-{number:04d}.safetensors" for number in range(4)]
    first, *others = [write_checkpoint(path, model_of(n)) for n, path in enumerate(paths)]
    more = {"weights": {"site-1": 2.0, "site-2": 1.0}, "metrics": {"loss": None}}
    more |= {"down": Transfer(320, reused=40), "up": Transfer(300, reused=20)}
    write_events(
        tmp_path,
        [
            run_started(job="mini"),
            ModelReady(bytes=160, tensors=1, digest=first),
            SitePhaseChanged(round=1, site="site-1", state="training"),
            SiteUpdate(round=1, site="site-1", weight=2.0, metrics={}),
            *(
                event
                for n, digest in enumerate(others, 1)
                for event in (
                    record(n, "fold", n, None, model=ModelRecord(n, n, 0, digest)),
                    round_finished(n, digest=digest, **more),
                )
            ),
            SiteFailed(round=3, site="site-2", reason="it was lost"),
            evaluated(3, 0.5, seconds=1.0, down=Transfer(80)),
            RunFinished(status="finished"),
        ],
    )
    put(paths[3], tmp_path / "global.safetensors")
    return tmp_path


def test_a_run_directory_shows_its_rounds_and_stands_for_the_final_model(run):
    found = examine(run).run
    assert examine(run).path == run / "global.safetensors"
    assert (found.job, found.status, found.rounds_planned) == ("mini", "finished", 3)
    assert [each.round for each in found.checkpoints] == [0, 1, 2, 3]
    assert found.checkpoints[3].metrics == {"accuracy": 0.5}
    assert len({each.digest for each in found.checkpoints}) == 4


def test_a_run_adds_up_what_moved_in_each_round_and_what_each_site_did(run):
    found = as_document(inspect_run(run))
    sums = {"seconds": 10.0, "down": 320, "up": 300, "reused": 60, "failures": 0, "late": 0}
    assert found["rounds"][:2] == [{"round": number, **sums} for number in (1, 2)]
    evaluated = {"round": 3, **sums, "seconds": 11.0, "down": 400, "failures": 1}
    assert found["rounds"][2:] == [evaluated]
    assert found["sites"] == [
        {"site": "site-1", "updates": 3, "weight": 6.0, "failures": 0, "late": 0},
        {"site": "site-2", "updates": 3, "weight": 3.0, "failures": 1, "late": 0},
    ]


def test_a_folder_without_a_journal_shows_its_checkpoints(run):
    (run / "events.jsonl").unlink()
    os.mkfifo(run / "events.jsonl")  # nobody waits for what it is not
    found = inspect_run(run)
    assert (found.job, found.status, found.rounds_completed) == ("", "", 3)
    assert [(each.round, each.digest) for each in found.checkpoints] == [(n, "") for n in range(4)]
    assert "no run directory" in verified_in(run)[0].checks[-1]


def test_verifying_a_run_compares_every_checkpoint_with_the_journal(run):
    with (run / "events.jsonl").open("a") as file:
        file.write('{"kind": "round_fin')
    assert (inspect_run(run).rounds_completed, inspect_run(run).status) == (3, "finished")
    assert [each.round for each in verified_in(run)] == [3, 0, 1, 2]
    final, path = run / "global.safetensors", run / "checkpoints" / "round-0002.safetensors"
    put(path, final)
    assert [each.round for each in verified_in(final)] == [2]
    put(run / "checkpoints" / "round-0003.safetensors", final)
    (alone,) = verified_in(path)
    assert (alone.round, "is the one that" in alone.checks[-1]) == (2, True)
    flip(path)
    for asked, words in ((path, "for round 2, so it is not the model"), (run, "round-0002")):
        with pytest.raises(CheckpointError, match=words):
            verified_in(asked)
    final.unlink()
    write_checkpoint(final, model_of(20))
    with pytest.raises(CheckpointError, match="for round 3, so it is not the model"):
        verified_in(final)


def test_verifying_a_run_reads_what_its_optimizer_remembered(run):
    state = run / "checkpoints" / "round-0002.optimizer.safetensors"
    digest = write_checkpoint(state, MemoryBody.of({"momentum.w": torch.ones(40)}))
    events = list(map(decode_event, (run / "events.jsonl").read_bytes().splitlines()))
    (fold,) = [event for event in events if isinstance(event, EffectDone) and event.round == 2]
    fold.model = msgspec.structs.replace(fold.model, optimizer_state=digest)
    (run / "events.jsonl").write_bytes(encode_lines(events))
    last = verified_in(run)[-1]
    assert (last.path, last.round, "is the one that" in last.checks[-1]) == (state, 2, True)
    flip(state)
    with pytest.raises(CheckpointError, match="not the optimizer that the run wrote"):
        verified_in(run)


def cut(run, effect):
    """Cut the journal of a run after an effect, as a resume does."""
    path = run / "events.jsonl"
    with EventLog(path, end=read_journal(path).ends[effect]) as log:
        log.write(RunResumed(round=effect, effect=effect))


def test_a_run_that_was_cut_has_the_models_before_the_cut(run):
    cut(run, 1)
    found = inspect_run(run)
    left = {each.round for each in found.checkpoints if each.digest}
    assert (found.status, left) == ("unfinished", {0, 1})
    assert {"accuracy": 0.5} not in [each.metrics for each in found.checkpoints]


def test_every_model_of_a_round_is_known_by_its_file(run):
    folder = RunDirectory(run)
    paths = [folder.step_checkpoint(4, 0), folder.step_checkpoint(4, 1), folder.checkpoint(4)]
    digests = [write_checkpoint(path, model_of(10 + step)) for step, path in enumerate(paths)]
    fold = {"name": "fold", "round": 4, "request": "", "arguments": ""}
    records = [ModelRecord(4, 4 + step, step, digest) for step, digest in enumerate(digests)]
    effects = [EffectDone(effect=n, model=model, **fold) for n, model in enumerate(records, 4)]
    cut(run, 3)
    write_events(run, effects)
    found = inspect_run(run)
    assert (found.status, found.rounds_completed) == ("unfinished", 2)
    made = found.checkpoints[4:]
    assert [(each.round, each.step) for each in made] == [(4, 0), (4, 1), (4, None)]
    assert [each.digest for each in made] == digests
    (run / "global.safetensors").unlink()
    assert [each.round for each in verified_in(run)] == [4, 0, 1, 2, 3, 4, 4]
    # The last one has both names, and is listed once.
    os.link(paths[2], folder.step_checkpoint(4, 2))
    assert [(each.round, each.step) for each in inspect_run(run).checkpoints[4:]] == [
        (4, 0), (4, 1), (4, None)
    ]  # fmt: skip
    write_checkpoint(paths[0], model_of(20))
    with pytest.raises(CheckpointError, match="for round 4, so it is not the model"):
        verified_in(paths[0])


def test_tensors_are_counted_and_a_file_of_no_run_is_confirmed_by_none(tmp_path):
    sizes = {"head.weight": 9, "body.0.attention.weight": 100, "scale": 1}
    path = tmp_path / "model.safetensors"
    body = MemoryBody.of({name: torch.zeros(size) for name, size in sizes.items()})
    digest = write_checkpoint(path, body)
    found = examine(path)
    assert {row.name for row in found.tensors} == sizes.keys()
    assert found.total == Count(3, 110, 440)
    (verified,) = verified_in(path)
    assert (verified.digest, verified.round) == (digest, None)
    assert "no run directory" in verified.checks[-1]
    for chunk, chunks in {16: 28, 432: 2, 448: 1}.items():
        assert examine(path, chunk_size=chunk).streaming == StreamingCost(chunk, chunks, True)
