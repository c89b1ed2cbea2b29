"""Run directories, filters, orders, modules and what streaming takes."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from flstream.errors import CheckpointError, UsageError
from flstream.inspection.examine import Request, examine, read_run
from flstream.inspection.overview import inspect_checkpoint
from flstream.inspection.tree import build_tree
from flstream.model.checkpoint import write_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    Evaluated,
    ModelReady,
    ModelRecord,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    Transfer,
    decode_event,
    encode_lines,
)


def model_of(number: int) -> MemoryBody:
    return MemoryBody.of({"w": torch.full((40,), float(number))})


def round_finished(number: int, digest: str) -> RoundFinished:
    return RoundFinished(
        round=number,
        digest=digest,
        download=1.0,
        train=1.0,
        upload_and_fold=1.0,
        checkpoint=1.0,
        weights={},
        metrics={"loss": None},
        down=Transfer(),
        up=Transfer(),
    )


def write_events(run: Path, events: Iterable[AnyEvent]) -> None:
    with EventLog(run / "events.jsonl") as log:
        for event in events:
            log.write(event)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory of three rounds, of which the last is the final model."""
    events: list[AnyEvent] = [
        RunStarted(job="mini", seed=0, rounds=3, clients=2, mode="pull", chunk_size=16)
    ]
    for number in range(4):
        path = tmp_path / "checkpoints" / f"round-{number:04d}.safetensors"
        digest = write_checkpoint(path, model_of(number))
        if number:
            events.append(round_finished(number, digest))
        else:
            events.append(ModelReady(bytes=160, tensors=1, digest=digest))
    scores = {"accuracy": 0.5}
    events.append(Evaluated(round=3, metrics=scores, seconds=1.0, down=Transfer()))
    events.append(RunFinished(status="finished"))
    write_events(tmp_path, events)
    (tmp_path / "global.safetensors").hardlink_to(path)
    return tmp_path


def test_a_run_directory_shows_its_rounds_and_stands_for_the_final_model(run: Path) -> None:
    findings = examine(Request(run))
    assert findings.inspection.file.path == run / "global.safetensors"
    found = findings.run
    assert found is not None
    assert (found.job, found.status, found.rounds_planned) == ("mini", "finished", 3)
    assert [each.round for each in found.checkpoints] == [0, 1, 2, 3]
    assert found.checkpoints[3].metrics == {"accuracy": 0.5}
    assert len({each.digest for each in found.checkpoints}) == 4


def test_verifying_a_run_compares_every_checkpoint_with_the_journal(run: Path) -> None:
    verified = examine(Request(run, verify=True)).verified
    assert verified is not None
    assert [each.round for each in verified] == [3, 0, 1, 2]
    (alone,) = (
        examine(Request(run / "checkpoints" / "round-0001.safetensors", verify=True)).verified or ()
    )
    assert alone.round == 1
    assert "is the one that" in alone.checks[-1]


def test_a_changed_checkpoint_is_not_what_the_run_wrote(run: Path) -> None:
    path = run / "checkpoints" / "round-0002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="for round 2, so it is not the model"):
        examine(Request(path, verify=True))
    with pytest.raises(CheckpointError, match="round-0002"):
        examine(Request(run, verify=True))


def test_verifying_a_run_reads_what_its_optimizer_remembered(run: Path) -> None:
    state = run / "checkpoints" / "round-0002.optimizer.safetensors"
    digest = write_checkpoint(state, MemoryBody.of({"momentum.w": torch.ones(40)}))
    events = list(map(decode_event, (run / "events.jsonl").read_bytes().splitlines()))
    events[3].optimizer_state = digest
    (run / "events.jsonl").write_bytes(encode_lines(events))
    verified = examine(Request(run, verify=True)).verified
    assert verified is not None
    assert (verified[-1].path, verified[-1].round) == (state, 2)
    assert "is the one that" in verified[-1].checks[-1]
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    with pytest.raises(CheckpointError, match="not the optimizer that the run wrote"):
        examine(Request(run, verify=True))


def test_scores_of_a_last_round_are_void_once_there_are_more_rounds(run: Path) -> None:
    write_events(run, [RunResumed(round=3, evaluated=False)])
    found = read_run(run)
    assert (found.status, found.rounds_completed) == ("unfinished", 3)
    assert found.checkpoints[3].metrics == {"loss": None}


def test_a_line_that_was_cut_off_is_passed_over(run: Path) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write('{"kind": "round_fin')
    assert read_run(run).rounds_completed == 3


@pytest.mark.parametrize(("resumed", "left"), [(1, {0, 1}), (None, set())])
def test_what_came_after_the_round_a_run_went_on_from_is_void(
    run: Path, resumed: int | None, left: set[int]
) -> None:
    write_events(run, [RunResumed(round=resumed)])
    found = read_run(run)
    assert found.status == "unfinished"
    assert {each.round for each in found.checkpoints if each.digest} == left


def effect(number: int, model: ModelRecord | None = None) -> EffectDone:
    return EffectDone(
        effect=number, name="fold", round=4, request="", arguments="", is_final=True, model=model
    )


def test_every_model_of_a_round_is_known_by_its_file(run: Path) -> None:
    folder = RunDirectory(run)
    paths = [folder.step_checkpoint(4, 0), folder.step_checkpoint(4, 1), folder.checkpoint(4)]
    digests = [write_checkpoint(path, model_of(10 + step)) for step, path in enumerate(paths)]
    records = [ModelRecord(4, 4 + step, step, digest) for step, digest in enumerate(digests)]
    write_events(
        run, [RunResumed(round=3), *(effect(n, each) for n, each in enumerate(records, 1))]
    )
    found = read_run(run)
    assert (found.status, found.rounds_completed) == ("unfinished", 3)
    made = found.checkpoints[4:]
    assert [(each.round, each.step) for each in made] == [(4, 0), (4, 1), (4, None)]
    assert [each.digest for each in made] == digests
    (run / "global.safetensors").unlink()
    verified = examine(Request(run, verify=True)).verified or ()
    assert [each.round for each in verified] == [4, 0, 1, 2, 3, 4, 4]
    # The run was cut off before it had written of the model that now has the newest's name.
    paths[2].rename(folder.step_checkpoint(4, 2))
    write_checkpoint(paths[2], model_of(20))
    (alone,) = examine(Request(paths[2], verify=True)).verified or ()
    assert alone.round is None
    write_checkpoint(paths[0], model_of(20))
    with pytest.raises(CheckpointError, match="for round 4, so it is not the model"):
        examine(Request(paths[0], verify=True))


def test_a_final_model_that_is_not_the_newest_is_one_that_the_run_wrote(run: Path) -> None:
    final = run / "global.safetensors"
    final.unlink()
    final.hardlink_to(run / "checkpoints" / "round-0002.safetensors")
    (verified,) = examine(Request(final, verify=True)).verified or ()
    assert verified.round == 2
    final.unlink()
    write_checkpoint(final, model_of(20))
    with pytest.raises(CheckpointError, match="for round 3, so it is not the model"):
        examine(Request(final, verify=True))


def test_a_damaged_journal_is_said_to_be_damaged_with_its_line(run: Path) -> None:
    lines = (run / "events.jsonl").read_text().splitlines()
    (run / "events.jsonl").write_text("\n".join([*lines[:2], "{", *lines[2:], ""]))
    with pytest.raises(CheckpointError, match=r"line 3, is damaged: .*; or inspect the checkpoint"):
        read_run(run)


def test_events_of_a_later_version_do_no_harm(run: Path) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write('{"kind": "unheard of", "more": [1, {}]}\n')
    assert read_run(run).status == "finished"


def test_the_summary_serves_where_there_is_no_journal(run: Path) -> None:
    digest = read_run(run).checkpoints[3].digest
    (run / "events.jsonl").unlink()
    summary = {"job": "mini", "status": "finished", "rounds_completed": 3}
    (run / "summary.json").write_text(json.dumps({**summary, "model": {"digest": digest}}))
    verified = examine(Request(run / "global.safetensors", verify=True)).verified
    assert verified is not None
    assert verified[0].round == 3
    (run / "summary.json").write_text(json.dumps({**summary, "model": {"digest": "0" * 32}}))
    with pytest.raises(CheckpointError, match=r"summary\.json has 0000"):
        examine(Request(run / "global.safetensors", verify=True))


def test_a_file_outside_of_a_run_has_a_digest_that_nothing_confirms(tmp_path: Path) -> None:
    digest = write_checkpoint(tmp_path / "m.safetensors", MemoryBody.of({"a": torch.zeros(3)}))
    (verified,) = examine(Request(tmp_path / "m.safetensors", verify=True)).verified or ()
    assert (verified.digest, verified.round) == (digest, None)
    assert "no run directory" in verified.checks[-1]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a checkpoint of a few modules."""
    state = {
        "head.weight": torch.zeros(3, 3),
        "body.0.attention.weight": torch.zeros(100),
        "body.0.attention.bias": torch.zeros(2),
        "body.1.weight": torch.zeros(50),
        "scale": torch.zeros(()),
    }
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, MemoryBody.of(state))
    return path


def test_a_filter_takes_names_that_match_any_pattern(model: Path) -> None:
    inspection = inspect_checkpoint(model, filters=["*.bias", "head.*"])
    assert [spec.name for spec in inspection.tensors] == ["body.0.attention.bias", "head.weight"]
    assert (inspection.shown.tensors, inspection.total.tensors) == (2, 5)
    with pytest.raises(UsageError, match=r"--filter 'nothing' or '\?'"):
        inspect_checkpoint(model, filters=["nothing", "?"])


def test_tensors_come_in_the_order_that_is_asked_for(model: Path) -> None:
    by_size = [spec.elements for spec in inspect_checkpoint(model, order="size").tensors]
    assert by_size == [100, 50, 9, 2, 1]
    names = [spec.name for spec in inspect_checkpoint(model, order="name").tensors]
    assert names == sorted(names)


def test_modules_have_the_totals_of_all_below_and_are_joined_where_alone(model: Path) -> None:
    rows = build_tree(inspect_checkpoint(model).tensors).document()
    totals = {row["name"]: (row["tensors"], row["parameters"], row["bytes"]) for row in rows}
    assert totals == {
        "body": (3, 152, 608),
        "body.0.attention": (2, 102, 408),
        "body.1": (1, 50, 200),
        "head": (1, 9, 36),
    }


@pytest.mark.parametrize(
    ("nbytes", "chunk", "chunks", "requests"),
    [(0, 16, 0, 0), (1, 16, 1, 1), (64 << 20, 2 << 20, 32, 1), ((64 << 20) + 1, 3 << 20, 22, 2)],
)
def test_chunks_and_requests_are_those_of_a_download(
    tmp_path: Path, nbytes: int, chunk: int, chunks: int, requests: int
) -> None:
    layout = Layout.of([("a", "U8", (nbytes,)), ("none", "U8", (0,))])
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as file:
        file.write(layout.header())
        file.truncate(file.tell() + nbytes)
    streaming = inspect_checkpoint(path, chunk_size=chunk).streaming
    assert (streaming.chunks, streaming.requests) == (chunks, requests)
    assert streaming.largest_tensor_chunks == chunks
    assert streaming.per_tensor_calls == 2
    assert streaming.as_it_lies
