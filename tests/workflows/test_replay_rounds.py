"""When rounds end and models are scored, and who takes part, live and on replay."""

import pytest
from flows import models, numbered, records, shape
from training_scripts import adding, of_kind

from flstream.errors import UsageError
from flstream.telemetry.events import SiteSuspended

ROUNDS = """
def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sites))
        see(number, run.evaluate(model), run.best)
        if number == 2:
            break_off()
    see("over", run.ended_early)
    break_off("over")
    return model
"""
CURVE = [0.5, 0.7, 0.6, 0.6, 0.9]
SCORES = adding({}, f"{CURVE}[number - 1]")
BEST = "BestEvaluation(round={}, value={})"


@pytest.mark.parametrize(
    ("place", "key", "rounds", "reason"),
    [
        ("over", 'stop_when="accuracy >= 0.65"', 2, "accuracy reached 0.7"),
        ("here", "patience=2", 4, "has not improved on 0.7 of round 2 for 2 evaluations"),
    ],
)
def test_rounds_end_by_the_verdict_on_evaluations_also_on_replay(flows, place, key, rounds, reason):
    how = [key, "rounds=5"]
    run = flows.broken(ROUNDS, *how, place=place, script=SCORES)
    live = flows.seen()
    resumed = flows.resume(run, ROUNDS, *how, script=SCORES)
    again = flows.seen()
    assert again[: len(live)] == live
    assert len(again) == rounds + 1
    assert again[-1].startswith("'over', '")
    assert reason in again[-1]
    assert reason in resumed.summary.ended_early
    assert resumed.summary.rounds_completed == rounds
    assert resumed.summary.best.round == 2
    assert resumed.directory.best_model.samefile(resumed.directory.checkpoint(2))


SELDOM = ["workflow.args.evaluate_every=2"]


def test_an_evaluation_of_the_last_round_alone_is_void_where_there_are_more_rounds_on_resume(flows):
    run = flows.finish(ROUNDS, *SELDOM, "rounds=3", "checkpoints.keep=1", script=adding({}))
    assert run.summary.best.round == 3
    # The best of those that any longer job has stays with the last.
    assert models(run) == ["round-0002", "round-0003"]
    flows.seen()
    how = [*SELDOM, "rounds=4", "checkpoints.keep=1"]
    resumed = flows.resume(run, ROUNDS, *how, script=adding({}))
    second, fourth = BEST.format(2, 2.0), BEST.format(4, 4.0)
    assert flows.seen() == [
        "1, None, None", f"2, {{'accuracy': 2.0}}, {second}", f"3, None, {second}",
        f"4, {{'accuracy': 4.0}}, {fourth}", "'over', None",
    ]  # fmt: skip
    rounds = ["fold", "fold", "evaluate"]
    assert shape(records(resumed)) == numbered(*rounds, *rounds)


FAILING = {("site-3", each): "raise KeyError('oops')" for each in (1, 2)}
SITES = """
see(number, run.sites, run.all_sites)
updates = run.train(model, run.all_sites, min_updates=1)
see(updates.sites, list(updates.failures))
see(run.sites)
model = run.fold(model, updates)
break_off(f"{number}")
"""


def test_who_is_still_asked_follows_from_final_records(flows):
    how = ["clients.count=3", "clients.suspend_after=2", "rounds=4"]
    run = flows.broken(SITES, *how, place="3", script=adding(FAILING))
    live = flows.seen()
    resumed = flows.resume(run, SITES, *how, script=adding(FAILING))
    again = flows.seen()
    assert again[: len(live)] == live
    everyone, two = "['site-1', 'site-2', 'site-3']", "['site-1', 'site-2']"
    # A failure counts once the model is durable that was made without the site.
    assert again[3:8] == [
        f"2, {everyone}, {everyone}", f"{two}, ['site-3']", everyone,
        f"3, {two}, {everyone}", f"{two}, []",
    ]  # fmt: skip
    assert resumed.summary.benched == ["site-3"]
    assert {each.round for each in of_kind(resumed, SiteSuspended)} == {2}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        # A list caps how many have to answer, and a sample does not.
        ('["site-3"]', "0 of 1 sites are left to train round 1, and 1 have to"),
        ("run.sample(number)", "2 sites are left to train round 2, and 3 have to"),
    ],
)
def test_too_few_sites_that_are_left_end_the_run(flows, asked, words):
    text = f"""
    sites, least = {asked}, 1 if number == 1 and "sample" in {asked!r} else None
    model = run.fold(model, run.train(model, sites, min_updates=least))
    """
    how = ["clients.count=3", "clients.suspend_after=1", "clients.min_updates=3"]
    assert words in flows.fail(text, *how, script=adding(FAILING))


RETURNS_EARLY = """
import os

def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sites))
        if number == int(os.environ.get("RETURNS_AT", 9)):
            return model
        if number == 2:
            break_off()
    return model
"""


def test_a_workflow_that_returns_before_its_records_are_used_up_is_refused(flows, monkeypatch):
    """A later resume that does as before goes on as if nothing had happened."""
    how = ["rounds=4", "workflow.args.evaluate_every=0"]
    run = flows.broken(RETURNS_EARLY, *how)
    monkeypatch.setenv("RETURNS_AT", "1")
    with pytest.raises(UsageError, match=r"returned after effect 1, and the run has done 2"):
        flows.resume(run, RETURNS_EARLY, *how)
    monkeypatch.setenv("RETURNS_AT", "9")
    resumed = flows.resume(run, RETURNS_EARLY, *how)
    whole = flows.finish(RETURNS_EARLY, *how)
    assert resumed.summary.model.digest == whole.summary.model.digest
