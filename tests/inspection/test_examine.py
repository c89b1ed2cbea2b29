"""Run directories, filters, orders, modules and what streaming takes."""

import json

import msgspec
import pytest
import torch
from journal_support import flip, record, run_started

from flstream.errors import CheckpointError, UsageError
from flstream.inspection.examine import Request, examine, read_run
from flstream.inspection.overview import StreamingCost, inspect_checkpoint
from flstream.inspection.tree import build_tree
from flstream.model.checkpoint import write_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    EffectDone,
    Evaluated,
    ModelReady,
    ModelRecord,
    RoundFinished,
    RunFinished,
    RunResumed,
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
    return examine(Request(path, verify=True)).verified or ()


@pytest.fixture
def run(tmp_path):
    """A run directory of three rounds, of which the last is the final model."""
    paths = [tmp_path / "checkpoints" / f"round-{number:04d}.safetensors" for number in range(4)]
    first, *others = [write_checkpoint(path, model_of(n)) for n, path in enumerate(paths)]
    seconds = dict.fromkeys(("download", "train", "upload_and_fold", "checkpoint"), 1.0)
    more = {"weights": {}, "metrics": {"loss": None}, "down": Transfer(), "up": Transfer()}
    write_events(
        tmp_path,
        [
            run_started(job="mini"),
            ModelReady(bytes=160, tensors=1, digest=first),
            *(
                event
                for n, digest in enumerate(others, 1)
                for event in (
                    record(n, "fold", n, None, model=ModelRecord(n, n, 0, digest)),
                    RoundFinished(round=n, digest=digest, **seconds, **more),
                )
            ),
            Evaluated(round=3, metrics={"accuracy": 0.5}, seconds=1.0, down=Transfer(), version=3),
            RunFinished(status="finished"),
        ],
    )
    put(paths[3], tmp_path / "global.safetensors")
    return tmp_path


def test_a_run_directory_shows_its_rounds_and_stands_for_the_final_model(run):
    findings = examine(Request(run))
    assert findings.inspection.file.path == run / "global.safetensors"
    found = findings.run
    assert (found.job, found.status, found.rounds_planned) == ("mini", "finished", 3)
    assert [each.round for each in found.checkpoints] == [0, 1, 2, 3]
    assert found.checkpoints[3].metrics == {"accuracy": 0.5}
    assert len({each.digest for each in found.checkpoints}) == 4


def test_verifying_a_run_compares_every_checkpoint_with_the_journal(run):
    with (run / "events.jsonl").open("a") as file:
        file.write('{"kind": "round_fin')
    assert (read_run(run).rounds_completed, read_run(run).status) == (3, "finished")
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
    events[4].model = msgspec.structs.replace(events[4].model, optimizer_state=digest)
    (run / "events.jsonl").write_bytes(encode_lines(events))
    last = verified_in(run)[-1]
    assert (last.path, last.round, "is the one that" in last.checks[-1]) == (state, 2, True)
    flip(state)
    with pytest.raises(CheckpointError, match="not the optimizer that the run wrote"):
        verified_in(run)


@pytest.mark.parametrize(
    ("resumed", "left"),
    [
        (RunResumed(round=3, effect=3), {0, 1, 2, 3}),
        (RunResumed(round=1, effect=1), {0, 1}),
        (RunResumed(round=None, effect=0), set()),
    ],
)
def test_what_came_after_what_a_run_went_on_from_is_void(run, resumed, left):
    write_events(run, [resumed])
    found = read_run(run)
    assert found.status == "unfinished"
    assert {each.round for each in found.checkpoints if each.digest} == left
    # Scores of a last round are void once there are more rounds.
    assert {"accuracy": 0.5} not in [each.metrics for each in found.checkpoints]


def test_every_model_of_a_round_is_known_by_its_file(run):
    folder = RunDirectory(run)
    paths = [folder.step_checkpoint(4, 0), folder.step_checkpoint(4, 1), folder.checkpoint(4)]
    digests = [write_checkpoint(path, model_of(10 + step)) for step, path in enumerate(paths)]
    fold = {"name": "fold", "round": 4, "request": "", "arguments": "", "is_final": True}
    records = [ModelRecord(4, 4 + step, step, digest) for step, digest in enumerate(digests)]
    effects = [EffectDone(effect=n, model=model, **fold) for n, model in enumerate(records, 4)]
    write_events(run, [RunResumed(round=3, effect=3), *effects])
    found = read_run(run)
    assert (found.status, found.rounds_completed) == ("unfinished", 2)
    made = found.checkpoints[4:]
    assert [(each.round, each.step) for each in made] == [(4, 0), (4, 1), (4, None)]
    assert [each.digest for each in made] == digests
    (run / "global.safetensors").unlink()
    assert [each.round for each in verified_in(run)] == [4, 0, 1, 2, 3, 4, 4]
    # The run was cut off before it had written of the model that now has the newest's name.
    paths[2].rename(folder.step_checkpoint(4, 2))
    write_checkpoint(paths[2], model_of(20))
    assert [each.round for each in verified_in(paths[2])] == [None]
    write_checkpoint(paths[0], model_of(20))
    with pytest.raises(CheckpointError, match="for round 4, so it is not the model"):
        verified_in(paths[0])


def test_the_summary_serves_where_there_is_no_journal(run):
    final, digest = run / "global.safetensors", read_run(run).checkpoints[3].digest
    (run / "events.jsonl").unlink()
    summary = {"job": "mini", "status": "finished", "rounds_completed": 3}
    (run / "summary.json").write_text(json.dumps({**summary, "model": {"digest": digest}}))
    assert [each.round for each in verified_in(final)] == [3]
    (run / "summary.json").write_text(json.dumps({**summary, "model": {"digest": "0" * 32}}))
    with pytest.raises(CheckpointError, match=r"summary\.json has 0000"):
        verified_in(final)


def test_a_checkpoint_has_its_tensors_by_module_and_name(tmp_path):
    sizes = {"head.weight": 9, "body.0.attention.weight": 100, "body.0.attention.bias": 2}
    sizes |= {"body.1.weight": 50, "scale": 1}
    path = tmp_path / "model.safetensors"
    body = MemoryBody.of({name: torch.zeros(size) for name, size in sizes.items()})
    digest = write_checkpoint(path, body)
    with pytest.raises(UsageError, match=r"--filter 'nothing' or '\?'"):
        inspect_checkpoint(path, filters=["nothing", "?"])
    assert [s.name for s in inspect_checkpoint(path, order="name").tensors] == sorted(sizes)
    # Modules have the totals of all below, and are joined where alone.
    rows = build_tree(inspect_checkpoint(path).tensors).document()
    assert {row["name"]: (row["tensors"], row["parameters"], row["bytes"]) for row in rows} == {
        "body": (3, 152, 608),
        "body.0.attention": (2, 102, 408),
        "body.1": (1, 50, 200),
        "head": (1, 9, 36),
    }
    # No run confirms its digest.
    (verified,) = examine(Request(path, verify=True)).verified or ()
    assert (verified.digest, verified.round) == (digest, None)
    assert "no run directory" in verified.checks[-1]


def test_chunks_and_requests_are_those_of_a_download():
    sizes = {(0, 16): (0, 0), (1, 16): (1, 1), (64 << 20, 2 << 20): (32, 1)}
    for (nbytes, chunk), due in {**sizes, ((64 << 20) + 1, 3 << 20): (22, 2)}.items():
        layout = Layout.of([("a", "U8", (nbytes,)), ("none", "U8", (0,))])
        _, _, *cost, _ = StreamingCost.of(layout, chunk, as_it_lies=True)
        assert cost == [*due, 2, due[0]]  # calls tensor by tensor, and chunks of the largest
