"""Which updates may become a model, and to what bits."""

import pytest
from flows import lines, models, records, trainings
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import QUIET, adding, mean_added, noisy

from flstream.telemetry.events import SiteFailed

MODEL = """
import torch


def build(elements=1000):
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(elements, generator=generator),
        "b": torch.randn(3, 5, generator=generator, dtype=torch.float64),
        "half": torch.randn(7, generator=generator).half(),
        "steps": torch.tensor(0),
    }
"""
ADOPT = """
def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        model = run.adopt(run.train(model, ["site-1"]))
    return model
"""
# What a site sends, and what it writes down for the test: the tensors that are due.
SENDS = """
import torch
from safetensors.torch import save_file
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    old = {name: each.clone() for name, each in model.params.items()}
    new = {}
    for name, each in old.items():
        noise = torch.randn(each.shape, dtype=torch.float64) / 3
        new[name] = (each + noise).to(each.dtype) if each.is_floating_point() else each + 7
%s
    due = {**old, **due}
    save_file(due, flare.system_info()["site_dir"] + "/due.safetensors")
    flare.send(flare.FLModel(params=sent, params_type=kind, meta=meta))
"""
KINDS = {
    "full": "sent, due, kind, meta = new, new, 'FULL', {'num_examples': 3}",
    "partial": "sent = {'b': new['b']}; due, kind, meta = sent, 'FULL', {'partial': True}",
    "difference": (
        "sent = {name: new[name] - old[name] for name in old}; kind, meta = 'DIFF', {}; "
        "due = {name: (old[name].double() + sent[name].double()).to(old[name].dtype) "
        "if old[name].is_floating_point() else old[name] + sent[name] for name in old}"
    ),
    "partial difference": (
        "sent = {'w': new['w'] - old['w']}; kind, meta = 'DIFF', {'partial': True}; "
        "due = {'w': (old['w'].double() + sent['w'].double()).float()}"
    ),
}
# Neither has a say in what is adopted.
SERVER = ["server_optimizer.type=fedavgm", "aggregation.clip_norm=0.01"]
HOW = {"own": [], "shared": ["clients.parallel=1"], "server": SERVER}


@first_and_nightly("kind", KINDS)
@first_and_nightly(
    "how", [[], ["clients.parallel=1"], SERVER], ids=["own", "shared", "server"], brief=4
)
def test_an_update_is_adopted_to_the_bit(flows, kind, how):
    script = SENDS % ("    " + KINDS[kind])
    run = flows.finish(ADOPT, QUIET, "rounds=1", *how, script=script, model=MODEL)
    adopted = load_file(run.directory.final_model)
    due = load_file(run.directory.site("site-1") / "due.safetensors")
    assert adopted.keys() == due.keys()
    for name, each in due.items():
        assert adopted[name].dtype == each.dtype
        assert adopted[name].equal(each), name


def test_a_fold_takes_updates_of_several_trainings_or_a_part_of_one(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            odd = run.train(model, ["site-1", "site-3"])
            even = run.train(model, ["site-2", "site-4"])
            if number == 1:
                model = run.fold(model, [*odd, *even])
            elif number == 2:
                model = run.fold(model, [*even, *odd][1:3])
            else:
                some = [each for each in run.train(model, run.sites) if each.weight > 1]
                model = run.fold(model, some)
            see([each.site for each in odd], [each.site for each in even])
        return model
    """
    four = ["clients.count=4", "rounds=3"]
    run = flows.finish(text, *four, script=adding({}))
    folded = [list(each.weights) for each in lines(run) if hasattr(each, "upload_and_fold")]
    # Rows are the sites in the order of the list.
    assert folded == [
        ["site-1", "site-3", "site-2", "site-4"],
        ["site-4", "site-1"],
        ["site-2", "site-3", "site-4"],
    ]
    for number, sites in enumerate(folded, 1):
        before = load_file(run.directory.checkpoint(number - 1))
        after = load_file(run.directory.checkpoint(number))
        for name, due in mean_added(before, sites).items():
            assert after[name].equal(due), f"{name} of round {number}"
    shared = flows.finish(text, *four, "clients.parallel=2", script=adding({}))
    assert shared.summary.model.digest == run.summary.model.digest


def test_nobody_has_to_answer_where_no_update_is_asked_for(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            for site in run.sites:
                updates = run.train(model, [site], min_updates=0)
                see(number, site, bool(updates), updates.failures)
                if updates:
                    model = run.adopt(updates)
        empty = run.train(model, [], min_updates=0)
        see(list(empty), empty.sites, dict(empty.failures))
        return model
    """
    script = adding({(site, 1): "raise KeyError('oops')" for site in ("site-1", "site-2")})
    run = flows.finish(text, QUIET, script=script)
    seen = flows.seen()
    assert [line.split(", {")[0] for line in seen[:4]] == [
        "1, 'site-1', False", "1, 'site-2', False", "2, 'site-1', True", "2, 'site-2', True",
    ]  # fmt: skip
    assert "KeyError: 'oops'" in seen[0]
    assert seen[4] == "[], [], {}"
    # In round 1 nobody has trained, and it has no model of its own.
    assert models(run) == [
        "round-0000.safetensors", "round-0002.safetensors", "round-0002.step-00.safetensors",
    ]  # fmt: skip
    assert run.summary.rounds_completed == 2
    assert load_file(run.directory.final_model)["steps"].item() == 3


def test_a_cyclic_round_in_which_every_site_fails_changes_nothing(flows):
    script = adding({(site, 1): "raise KeyError('oops')" for site in ("site-1", "site-2")})
    run = flows.jobs.run(script, "workflow.type=cyclic")
    assert run.summary.status == "finished", run.summary.error
    assert load_file(run.directory.final_model)["steps"].item() == 3
    assert [each["round"] for each in run.summary.metrics] == [1, 2]


def test_an_update_that_turns_out_unsound_when_it_is_adopted_changes_nothing(flows):
    script = adding({("site-1", 1): "params['w'][3] = float('nan')"})
    run = flows.jobs.run(script, "workflow.type=cyclic", QUIET)
    assert run.summary.status == "finished", run.summary.error
    [failure] = run.summary.failures
    assert (failure.round, failure.site) == (1, "site-1")
    assert "tensor 'w' at [3] is nan" in failure.reason
    kept, initial = run.directory.step_checkpoint(1, 0), run.directory.checkpoint(0)
    assert all(each.equal(load_file(initial)[name]) for name, each in load_file(kept).items())
    assert load_file(run.directory.final_model)["steps"].item() == 5


def test_a_site_that_takes_longer_than_the_workflow_allows_has_failed(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            updates = run.train(model, run.sites, min_updates=1, timeout=1.5)
            model = run.fold(model, updates)
            see(updates.sites, dict(updates.failures))
        return model
    """
    script = adding({("site-2", 1): "threading.Event().wait()"})
    run = flows.finish(text, "rounds=1", "clients.round_timeout=100 s", QUIET, script=script)
    [seen] = flows.seen()
    assert seen.startswith("['site-1'], {'site-2': 'it did not answer its train task")
    [failed] = [each for each in lines(run) if isinstance(each, SiteFailed)]
    assert failed.site == "site-2"


@pytest.mark.nightly
def test_an_update_that_turns_out_unsound_is_left_out_and_its_site_goes_back(flows):
    # It was read first, and has the weight it had then; the fold finds out, and says why.
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            updates = run.train(model, run.sites, min_updates=1)
            see(number, updates.sites)
            model = run.fold(model, updates)
            die_here(f"{number}")
        return model
    """
    bad = 'if (site, number) == ("site-2", 1):\n    params["w"][7] = float("nan")\n'
    expected = flows.finish(text, QUIET, "clients.min_updates=1", script=noisy(bad))
    assert flows.seen() == ["1, ['site-1', 'site-2']", "2, ['site-1', 'site-2']"]
    folds = [each.model for each in records(expected) if each.model is not None]
    assert len(folds) == 2
    [failed] = [each for each in lines(expected) if isinstance(each, SiteFailed)]
    assert "'w'" in failed.reason
    run = flows.killed(text, QUIET, "clients.min_updates=1", place="1", script=noisy(bad))
    resumed = flows.resume(run, text, QUIET, "clients.min_updates=1", script=noisy(bad))
    assert resumed.summary.model.digest == expected.summary.model.digest
    assert trainings(resumed, "site-2") == 2
