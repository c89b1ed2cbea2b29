"""Folds that see whole tensors, and bodies of the server's own beside a model."""

import pytest
import torch
from flows import records
from support import tensors_of
from training_scripts import LARGE, QUIET, of_kind

from flstream.model.checkpoint import FileSource
from flstream.runs.model_files import body_file
from flstream.telemetry.events import SiteLog

FLOW = """
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Middle:
    least: int = 1

    def groups(self, names):
        see(sorted(names))
        return {"all": [name for name in names if name != "b"]}

    def combine(self, group, updates):
        group.log("sites", len(updates))
        values = {name: [update.tensors.get(name, base) for update in updates]
                  for name, base in group.base.items()}
        sums = {name: np.median(each, axis=0) for name, each in values.items()}
        if "kept::sum" in sums:
            sums["kept::sum"] = group.base["kept::sum"] + sum(u.weight for u in updates)
        return sums


def flow(run):
    model = run.initial_model(kept=lambda shapes: {"sum": (2, 1)})
    for number in run.rounds():
        updates = run.train(model, run.sample(number))
        if number == 2:
            see([update.site for update in updates])
        model = run.fold(model, updates, tensors=Middle())
        break_off(f"{number}")
        run.evaluate(model)
    return model
"""
HOW = ["clients.count=3", "rounds=3"]


@pytest.mark.parametrize("size", ["model.args.elements=50", LARGE])
def test_groups_and_own_bodies_are_the_same_however_a_run_goes(flows, size):
    whole = flows.finish(FLOW, size, *HOW)
    names = ["['b', 'kept::sum', 'w']", "['site-1', 'site-2', 'site-3']"]
    assert set(flows.seen()) == set(names)
    digests = {record.model.digest for record in records(whole) if record.model}
    kept = FileSource(body_file(whole.directory.checkpoint(3), "kept"))
    data = bytearray(kept.layout.nbytes)
    kept.read(0, len(data), memoryview(data))
    assert list(memoryview(data).cast("f")) == [18.0, 18.0]  # weights of 1, 2 and 3, three times
    logged = [
        (event.round, event.value) for event in of_kind(whole, SiteLog) if event.key == "sites"
    ]
    assert logged == [(1, 3.0), (2, 3.0), (3, 3.0)]
    for how in (["clients.parallel=2"], ["checkpoints.keep=1"]):
        other = flows.finish(FLOW, size, *HOW, *how)
        assert {record.model.digest for record in records(other) if record.model} == digests
    for place in ("1", "2"):
        # Models before the newest have gone, and effects are replayed without them.
        cut = flows.broken(FLOW, size, *HOW, "checkpoints.keep=1", place=place)
        flows.seen()
        resumed = flows.resume(cut, FLOW, size, *HOW, "checkpoints.keep=1")
        assert {record.model.digest for record in records(resumed) if record.model} == digests
    assert not list(whole.directory.path.rglob("*groups*"))


ONE = """
def first(group, updates):
    return updates[0].tensors[group.name]


def flow(run):
    model = run.initial_model(%s)
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sites), %s)
    return model
"""
HALF = """
class Half:
    def groups(self, names):
        return {"w": ["w"]}

    def combine(self, group, updates):
        return {"w": group.base["w"] / 2}
"""
QUICK = [QUIET, "rounds=1", "clients.count=2"]


@pytest.mark.parametrize(
    ("begin", "fold", "how", "sentence"),
    [
        ("", "tensors=3", [], "was given a int as tensors; give it a function of (group, updates)"),
        ("", "tensors=first, at=run.sites", [], "tensors=first, which combines whole tensors in"),
        ("", "FoldRule(), tensors=first", [], "and a rule or a step, which is for sums"),
        ("", "tensors=first", ["aggregation.method=median"], "and aggregation.method is for"),
        ("", "tensors=first", ["aggregation.clip_norm=1"], "aggregation.clip_norm is for numbers"),
        ("", "tensors=first", ["server_optimizer.type=fedavgm"], "server_optimizer.type is for"),
        ("", "at=run.sites", ['aggregation.method="half.py:Half"'], "aggregation.method = "),
        ("kept=3", "", [], "or give it a function that returns shapes by name"),
        ("kept=lambda s: 1 / 0", "", [], "(kept=...) raised ZeroDivisionError"),
        ("kept=lambda s: {}", "", [], "(kept=...) returned none; let it return"),
        ("kept=lambda s: s", "", [], "returned a tensor 'b', which the model has"),
        ("kept=lambda s: {'n': (2,)}", "at=run.sites", [], "the body 'kept' lies beside the"),
        ("tensors='zeros'", "", [], "a body named 'tensors'"),
        ("", "tensors=first", ["aggregation.memory_budget=1 MiB", LARGE], "the group 'w' of first"),
    ],
)
def test_what_does_not_go_with_whole_tensors_is_a_sentence(flows, begin, fold, how, sentence):
    (flows.jobs.folder / "half.py").write_text(HALF)
    assert sentence in flows.fail(ONE % (begin, fold), *QUICK, *how)


def test_a_class_of_the_job_combines_groups_and_the_rest_takes_the_mean(flows):
    (flows.jobs.folder / "half.py").write_text(HALF)
    mean = flows.finish(ONE % ("", ""), *QUICK)
    text, own = ONE % ("", ""), 'aggregation.method="half.py:Half"'
    for how in ([], ["clients.parallel=1"]):
        half = flows.finish(text, *QUICK, own, *how)
        first, plain, found = (
            tensors_of(FileSource(path))
            for path in (
                half.directory.checkpoint(0),
                mean.directory.final_model,
                half.directory.final_model,
            )
        )
        assert torch.equal(found["w"], first["w"] / 2)
        assert torch.equal(found["b"], plain["b"])
    both = HALF.replace(
        "    def groups", "    def weigh(self, gram, weights):\n        1\n\n    def groups"
    )
    (flows.jobs.folder / "half.py").write_text(both)
    assert "Half has both weigh and combine" in flows.fail(text, *QUICK, own)


@pytest.mark.usefixtures("processes")
def test_updates_of_workers_of_their_own_come_in_files_once(flows):
    text = ONE % ("", "tensors=first")
    own = flows.finish(text, *QUICK, LARGE)
    shared = flows.finish(text, *QUICK, LARGE, "clients.parallel=1")
    assert own.summary.model.digest == shared.summary.model.digest
    assert own.summary.transfer.up.bytes < 2.1 * own.summary.model.bytes
    assert not (own.directory.path / "updates").exists() or not any(
        (own.directory.path / "updates").iterdir()
    )


def test_later_stages_keep_the_bodies_of_the_server_and_no_site_model_is_collected(flows):
    text = ONE % ("kept=lambda shapes: {'sum': (1,)}", "tensors=first")
    kind = 'workflow=[{type="flow.py:flow"}, {type=fedavg}, {type=%s}]'
    run = flows.finish(text, kind % "evaluate", *QUICK[1:])
    assert [sorted(r.model.bodies) for r in records(run) if r.model] == [["kept"], ["kept"]]
    assert "the body 'kept' lies beside" in flows.fail(text, kind % "cross_site", *QUICK[1:])
    assert "model with the body 'kept' beside" in flows.fail(text, kind % "cyclic", *QUICK[1:])
