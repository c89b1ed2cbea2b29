"""Private runs: epsilon in each round's record, and what ends or is refused for its sake."""

import pytest
from flows import records, result
from safetensors.torch import load_file
from training_scripts import QUIET, noisy

from flstream.aggregation.accountant import NOT_DRAWN, Accounting, epsilon

PRIVATE = ["privacy.type=central", "privacy.noise_multiplier=1.2", "clients.count=6", "rounds=3"]
CLIPPING = "privacy.clipping={type=adaptive, norm=5, count_stddev=2}"
ADAPTIVE = [*PRIVATE, "clients.per_round=4", CLIPPING]


def private(run):
    """The privacy of each fold, as the journal has it."""
    return [result(each)["privacy"] for each in records(run) if each.name == "fold"]


REFUSED = {
    "run.adopt(run.train(model, run.sites[:1]))": "run.adopt() makes an update the next model as i",
    "run.start('site-1', model)": "and privacy.type is central; use run.train()",
    "run.fold(model, [*run.train(model, run.sites), *run.train(model, run.sites)])": (
        "was given two updates of site-1, and"
    ),
}
FLOW = f"""
def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        drawn = run.sample(number)
        model = run.fold(model, run.train(model, drawn))
        %s
    refused(run, {list(REFUSED)}, model=model)
    return model
"""


def test_each_round_has_its_epsilon_its_norm_and_the_fraction_clipped(flows):
    counting = noisy().replace("params.values():\n", "params.values():\n        tensor += 1\n")
    run = flows.finish(FLOW % "", *ADAPTIVE, script=counting)
    for call, (sentence, _) in flows.sentences().items():
        assert REFUSED[call] in sentence
    rounds, found = run.summary.rounds, private(run)
    accounting = Accounting("rdp", "poisson", 1.2, 4, 6, 1e-5)
    assert [each.epsilon for each in rounds] == [
        epsilon(accounting, {6: count}) for count in (1, 2, 3)
    ]
    assert [each.clip_norm for each in rounds] == [each["clip_norm"] for each in found]
    assert rounds[0].clip_norm == 5.0
    assert [each["next_clip_norm"] for each in found[:2]] == [each.clip_norm for each in rounds[1:]]
    assert len({each.clip_norm for each in rounds}) == 3
    assert [each.clipped for each in rounds] == [1.0, 1.0, 1.0]  # noise of norm 31 to a norm of 5
    # Integers keep their values, and a warning names them.
    assert [each for each in run.summary.warnings if each.startswith("steps keep the values")]
    assert load_file(run.directory.final_model)["steps"].item() == 0


def test_the_job_ends_before_a_round_that_would_spend_too_much(jobs):
    accounting = Accounting("rdp", "poisson", 1.2, 6, 6, 1e-5)
    once, twice = epsilon(accounting, {6: 1}), epsilon(accounting, {6: 2})
    # A later workflow of the job does not begin what the one before had to end.
    stages = "workflow=[{args.evaluate_every=0}, {args.evaluate_every=0}]"
    run = jobs.run(
        noisy(), *PRIVATE, f"stop_when=epsilon > {(once + twice) / 2}", stages
    ).finished()
    assert [each.epsilon for each in run.summary.rounds] == [once]
    assert run.summary.ended_early.startswith(f"epsilon is {once:.4g} after round 1, and another")
    run = jobs.run(noisy(), *PRIVATE, f"stop_when=epsilon > {once / 2}", QUIET)
    assert run.summary.status == "failed"
    assert f"one round alone would spend an epsilon of {once:.4g}" in run.summary.error


@pytest.mark.nightly
def test_folds_that_share_a_draw_or_have_none_get_no_benefit_of_it(flows):
    text = FLOW % (
        "if number > 1:\n"
        "            sites = drawn if number == 2 else run.sites\n"
        "            model = run.fold(model, run.train(model, sites))"
    )
    run = flows.finish(text, *PRIVATE, "clients.per_round=4")
    accounting = Accounting("rdp", "poisson", 1.2, 4, 6, 1e-5)
    due = [{6: 1}, {6: 1, NOT_DRAWN: 2}, {6: 1, NOT_DRAWN: 4}]
    assert [each.epsilon for each in run.summary.rounds] == [
        epsilon(accounting, each) for each in due
    ]
    folds = [{int(sites): count for sites, count in each["folds"].items()} for each in private(run)]
    assert folds[1] == {6: 2}  # until the second fold of round 2 shares its draw
