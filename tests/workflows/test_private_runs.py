"""Private runs: the same bits however they are run, and epsilon in each round's record."""

import math

import pytest
from flows import Flows, finished, records, result
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import LARGE, noisy, results

from flstream.aggregation.accountant import NOT_DRAWN, Accounting, epsilon

FEDAVG = """
from flstream.workflows import workflow
from flstream.workflows.fedavg import FedAvgArgs, fedavg


@workflow("flow", FedAvgArgs)
def flow(run, args):
    for place in ("2 train", "2 fold"):
        after(place)
    return fedavg(run, args)


def after(place):
    from flstream.server.effects import EffectJournal

    do = EffectJournal.record

    def patched(self, effect, *args, **kwargs):
        result = do(self, effect, *args, **kwargs)
        if f"{effect.round} {effect.name}" == place:
            die_here(place)
        return result

    EffectJournal.record = patched
"""
# Sends back what it has received.
STILL = """
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    flare.send(flare.FLModel(params=model.params))
"""
PRIVATE = ["privacy.type=central", "privacy.noise_multiplier=1.2", "clients.count=6", "rounds=3"]
ADAPTIVE = [
    *PRIVATE,
    "clients.per_round=4",
    "privacy.clipping.type=adaptive",
    "privacy.clipping.norm=50",
    "privacy.clipping.count_stddev=2",
    LARGE,
]


def private(run):
    """What the journal says of the privacy of each fold."""
    return [result(each)["privacy"] for each in records(run) if each.name == "fold"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """A run that nobody disturbs, each site in a process of its own."""
    flows = Flows(jobs_in(tmp_path_factory.mktemp("private")))
    return flows.finish(FEDAVG, *ADAPTIVE)


def test_each_round_has_its_epsilon_its_norm_and_the_fraction_clipped(undisturbed):
    rounds, found = undisturbed.summary.rounds, private(undisturbed)
    accounting = Accounting("rdp", "poisson", 1.2, 4, 6, 1e-5)
    assert [each.epsilon for each in rounds] == [
        epsilon(accounting, {6: count}) for count in (1, 2, 3)
    ]
    assert [each.clip_norm for each in rounds] == [each["clip_norm"] for each in found]
    assert rounds[0].clip_norm == 50.0
    assert [each["next_clip_norm"] for each in found[:2]] == [each.clip_norm for each in rounds[1:]]
    assert len({each.clip_norm for each in rounds}) == 3
    assert [each.clipped for each in rounds] == [1.0, 1.0, 1.0]  # noise of norm 550 to a norm of 50
    assert '"epsilon"' in undisturbed.directory.summary.read_text()


@pytest.mark.nightly
@first_and_nightly(
    "how",
    [
        ["clients.parallel=1", "streaming.tensor_download_chunk_size=4KiB"],
        ["clients.parallel=2"],
        ["clients.parallel=2", "aggregation.memory_budget=1MiB", "streaming.mode=push"],
    ],
)
def test_no_bit_depends_on_workers_chunks_or_mode(flows, undisturbed, how):
    run = flows.finish(FEDAVG, *ADAPTIVE, *how)
    assert results(run) == results(undisturbed)
    assert private(run) == private(undisturbed)


@pytest.mark.nightly
@first_and_nightly("place", ["2 train", "2 fold"])
def test_no_bit_depends_on_a_kill(flows, undisturbed, place):
    how = [*ADAPTIVE, "clients.parallel=2"]
    killed = flows.killed(FEDAVG, *how, place=place)
    run = flows.resume(killed, FEDAVG, *how)
    assert results(run) == results(undisturbed)
    assert run.summary.rounds[-1].epsilon == undisturbed.summary.rounds[-1].epsilon


def test_the_job_ends_before_a_round_that_would_spend_too_much(flows):
    accounting = Accounting("rdp", "poisson", 1.2, 6, 6, 1e-5)
    once, twice = epsilon(accounting, {6: 1}), epsilon(accounting, {6: 2})
    budget = (once + twice) / 2
    how = [*PRIVATE, f"stop_when=epsilon > {budget}", "workflow.args.evaluate_every=0"]
    run = finished(flows.jobs.run(noisy(), *how))
    assert [each.epsilon for each in run.summary.rounds] == [once]
    assert run.summary.ended_early.startswith(f"epsilon is {once:.4g} after round 1, and another")
    run = flows.jobs.run(noisy(), *PRIVATE, f"stop_when=epsilon > {once / 2}")
    assert run.summary.status == "failed"
    assert f"one round alone would spend an epsilon of {once:.4g}" in run.summary.error
    # A later workflow of the job does not begin what the one before had to end.
    stages = 'workflow=[{type="flow.py:flow", args.evaluate_every=0}, {args.evaluate_every=0}]'
    flows.write(FEDAVG)
    run = finished(flows.jobs.run(noisy(), *how[:-1], stages))
    assert [each.epsilon for each in run.summary.rounds] == [once]


@pytest.mark.nightly
def test_integers_keep_their_values_and_a_warning_names_them(flows):
    counting = noisy().replace("params.values():\n", "params.values():\n        tensor += 1\n")
    run = finished(flows.jobs.run(counting, *PRIVATE, "rounds=1"))
    assert [each for each in run.summary.warnings if each.startswith("steps keep the values")]
    assert load_file(run.directory.final_model)["steps"].item() == 0


def test_an_adoption_is_refused_since_it_would_show_one_sites_update(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            return run.adopt(run.train(model, run.sites[:1]))
    """
    error = flows.fail(text, *PRIVATE)
    assert "run.adopt() makes an update the next model as it is" in error


@pytest.mark.nightly
def test_folds_that_share_a_draw_or_have_none_get_no_benefit_of_it(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            drawn = run.sample(number)
            model = run.fold(model, run.train(model, drawn))
            if number == 2:
                model = run.fold(model, run.train(model, drawn))
            if number == 3:
                model = run.fold(model, run.train(model, run.sites))
        return model
    """
    run = flows.finish(text, *PRIVATE, "clients.per_round=4")
    accounting = Accounting("rdp", "poisson", 1.2, 4, 6, 1e-5)
    due = [{6: 1}, {6: 1, NOT_DRAWN: 2}, {6: 1, NOT_DRAWN: 4}]
    assert [each.epsilon for each in run.summary.rounds] == [
        epsilon(accounting, each) for each in due
    ]
    folds = [dict(each["folds"]) for each in private(run)]
    assert folds[1] == {6: 2}  # until the second fold of round 2 shares its draw


@pytest.mark.nightly
def test_a_round_for_which_nobody_was_drawn_is_noise_alone(flows):
    how = ["privacy.type=central", "clients.count=4", "clients.per_round=1", "rounds=8", "seed=3"]
    run = finished(flows.jobs.run(noisy(), *how, "clients.parallel=2"))
    sizes = [len(result(each)["weights"]) for each in records(run) if each.name == "fold"]
    assert 0 in sizes
    assert max(sizes) > 1
    digests = [result.model.digest for result in records(run) if result.model is not None]
    assert len(set(digests)) == 8


@pytest.mark.nightly
def test_a_simulated_cohort_has_its_noise_and_its_epsilon(flows):
    how = ["privacy.noise_cohort_size=600", "privacy.population=100000", "rounds=1"]
    run = finished(flows.jobs.run(STILL, *PRIVATE, *how, "workflow.args.evaluate_every=0", LARGE))
    before, after = (load_file(run.directory.checkpoint(number))["w"].double() for number in (0, 1))
    assert (after - before).std().item() == pytest.approx(1.2 * 1.0 / 600, rel=0.01)
    due = epsilon(Accounting("rdp", "poisson", 1.2, 600, 100_000, 1e-5), {100_000: 1})
    assert run.summary.rounds[0].epsilon == due
    assert math.isfinite(due)
