"""Which updates may become a model, and to what bits."""

import pytest
from flows import models, records
from safetensors.torch import load_file
from training_scripts import QUIET, adding, check_rounds_are_means, noisy, plain, took_part, trained

# What a site sends: all of it, a part, a difference, and a part of one; and what is due of it.
SENDS = plain(
    """
    old = {name: each.clone() for name, each in params.items()}
    new = {name: each + (torch.randn(()) / 3).to(each.dtype) for name, each in old.items()}
    whole = {name: (new[name] - old[name]) for name in old}
    kind = "DIFF" if site in ("site-3", "site-4") else "FULL"
    names = {"site-2": ["b"], "site-4": ["w"]}.get(site, list(old))
    sent = {name: (whole if kind == "DIFF" else new)[name] for name in names}
    due = {**old, **{name: new[name] for name in names}}
    if kind == "DIFF":
        for name in names:
            due[name] = (old[name].double() + sent[name].double()).to(old[name].dtype)
    meta = {"partial": len(names) < len(old)}
    save_file(due, flare.system_info()["site_dir"] + "/due.safetensors")
    """,
    before="from safetensors.torch import save_file",
    sends="params=sent, params_type=kind, meta=meta",
)


def test_updates_are_adopted_to_the_bit_and_a_whole_one_gets_a_second_name_and_no_copy(flows):
    text = """
    for step, site in enumerate(run.sites):
        updates = run.train(model, [site])
        first = updates[0]
        model = run.adopt(updates)
        update = run_folder() / f"updates/effect-{first.training.number:04d}/{site}.safetensors"
        see(update.samefile(run_folder() / f"checkpoints/round-0001.step-{step:02d}.safetensors"))
    """
    # Neither has a say in what is adopted.
    server = ["server_optimizer.type=fedavgm", "aggregation.clip_norm=0.01"]
    how = [QUIET, "rounds=1", "clients.count=4", *server]
    run = flows.finish(text, *how, script=SENDS)
    assert flows.seen() == ["True", "False", "False", "False"]
    for record, number in zip(records(run)[1::2], range(1, 5), strict=True):
        adopted = load_file(run.directory.model_file(record.model))
        due = load_file(run.directory.site(f"site-{number}") / "due.safetensors")
        assert adopted.keys() == due.keys()
        for name, tensor in due.items():
            assert adopted[name].equal(tensor), (number, name)


def test_a_fold_takes_updates_of_several_trainings_or_a_part_of_one(flows):
    text = """
    odd = run.train(model, ["site-1", "site-3"])
    even = run.train(model, ["site-2", "site-4"])
    if number == 1:
        model = run.fold(model, [*odd, *even])
    elif number == 2:
        model = run.fold(model, [*even, *odd][1:3])
    else:
        some = [each for each in run.train(model, run.sites) if each.weight > 1]
        model = run.fold(model, some)
    len(odd), len(even)
    """
    run = flows.finish(text, "clients.count=4", "rounds=3", QUIET, script=adding({}))
    # Rows are the sites in the order of the list.
    assert took_part(run) == {
        1: ["site-1", "site-3", "site-2", "site-4"],
        2: ["site-4", "site-1"],
        3: ["site-2", "site-3", "site-4"],
    }
    check_rounds_are_means(run)


def test_updates_that_fail_or_turn_out_unsound_in_a_relay_change_nothing(jobs):
    deeds = {(site, 1): "raise KeyError('oops')" for site in ("site-1", "site-2")}
    deeds["site-1", 2] = "params['w'][3] = float('nan')"
    how = ["workflow.type=cyclic", "rounds=3", "checkpoints.keep=1", "clients.suspend_after=0"]
    run = jobs.run(adding(deeds), *how, QUIET).finished()
    failed = [(each.round, each.site) for each in run.summary.failures]
    assert failed == [(1, "site-1"), (1, "site-2"), (2, "site-1")]
    assert "tensor 'w' at [3] is nan" in run.summary.failures[-1].reason
    assert [row["round"] for row in run.summary.metrics] == [1, 2, 3]
    assert load_file(run.directory.final_model)["steps"].item() == 2 + 3
    assert models(run) == ["round-0003"]


@pytest.mark.usefixtures("processes")
def test_a_site_that_takes_longer_than_the_workflow_allows_has_failed(flows):
    text = """
    updates = run.train(model, ["site-2"], min_updates=0, timeout=0.3)
    see(updates.sites, dict(updates.failures))
    model = run.fold(model, run.train(model, ["site-1"]))
    """
    script = adding({("site-2", 1): "threading.Event().wait()"})
    flows.finish(text, "rounds=1", "clients.round_timeout=100 s", QUIET, script=script)
    [seen] = flows.seen()
    assert seen.startswith("[], {'site-2': 'it did not answer its train task")


def test_an_update_that_is_read_is_sound_and_one_that_is_not_has_failed_its_training(flows):
    text = """
    updates = run.train(model, run.sites, min_updates=1)
    see(number, updates.sites)
    model = run.fold(model, updates)
    break_off(f"{number}")
    """
    bad = 'if (site, number) == ("site-2", 1):\n    params["w"][7] = float("nan")\n'
    how = [QUIET, "clients.min_updates=1"]
    run = flows.broken(text, *how, place="1", script=noisy(bad))
    assert flows.seen() == ["1, ['site-1']"]
    resumed = flows.resume(run, text, *how, script=noisy(bad))
    assert flows.seen() == ["1, ['site-1']", "2, ['site-1', 'site-2']"]
    [failed] = resumed.summary.failures
    assert "'w'" in failed.reason
    assert trained(resumed, "site-2") == [1, 2]


STEPS = """
from dataclasses import dataclass

from flstream.workflows import ServerStep


@dataclass(frozen=True)
class Momentum(ServerStep):
    beta: float
    moments = ("momentum",)

    def step(self, difference, moments, updates):
        moments["momentum"] *= self.beta
        moments["momentum"] += difference
        return 1.0 * moments["momentum"]


def flow(run):
    model, beta = run.initial_model(), float((HERE / "beta").read_text())
    for number in run.rounds():
        updates = run.train(model, run.sites)
        if number == 2:
            break_off()
            refused(run, CALLS, model=model, updates=updates, Momentum=Momentum)
        model = run.fold(model, updates, step=Momentum(beta))
    return model
"""
REFUSED_STEPS = {
    "run.fold(model, updates, step=Momentum)": "was given a type as step; give it an object of",
    "run.fold(model, updates, step=Momentum(0.9), at=['site-1'])": "a step, which is for",
}


def test_a_workflow_may_have_a_step_of_the_servers_own_which_a_resume_goes_on_with(flows):
    text = STEPS.replace("CALLS", str(list(REFUSED_STEPS)))
    (flows.jobs.folder / "beta").write_text("0.9")
    due = flows.jobs.run(noisy(), QUIET, "server_optimizer.type=fedavgm")
    run = flows.resume(flows.broken(text, QUIET), text, QUIET)
    assert run.summary.model.digest == due.finished().summary.model.digest
    for line, sentence in zip(flows.seen(), REFUSED_STEPS.values(), strict=True):
        assert sentence in line
    cut = flows.broken(text, QUIET)
    (flows.jobs.folder / "beta").write_text("0.8")
    again = flows.jobs.go_on(cut, noisy(), flows.write(text), QUIET)
    assert "effect 1 of the workflow was fold(" in again.summary.error
    assert "leave out server_optimizer.type" in flows.fail(
        text, QUIET, "server_optimizer.type=fedadam"
    )


OUTER = """
from flstream.workflows import nesterov


def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sites), step=nesterov(RATE, MOMENTUM))
    return model
"""


@pytest.mark.parametrize(
    ("rate", "momentum", "due"), [(0.7, 0.9, ["server_optimizer=nesterov"]), (1, 0, [])]
)
def test_dilocos_outer_step_is_the_server_optimizer_and_the_identity_the_mean(
    flows, rate, momentum, due
):
    text = OUTER.replace("RATE", str(rate)).replace("MOMENTUM", str(momentum))
    own = flows.finish(text, QUIET, script=noisy())
    named = flows.jobs.run(noisy(), QUIET, *due).finished()
    assert own.summary.model.digest == named.summary.model.digest
