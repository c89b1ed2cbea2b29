"""Stages, random numbers, orders and logged values: what else goes on where a run is resumed."""

import pytest
from flows import numbered, records, shape
from training_scripts import QUIET, adding, of_kind

from flstream.errors import UsageError
from flstream.telemetry.events import EndedEarly, SiteLog

STAGES = """
def first(run):
    model = run.initial_model()
    see("first", model)
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sites))
        see(number, model.version, run.evaluate(model), run.random("draw").random())
    return model


def second(run):
    model = run.initial_model()
    refused(run, ["run.train(model, run.sites)"], model=model)
    see("second", model, run.evaluate(model))
    for number in run.rounds():
        for site in run.order(number, "fixed"):
            model = run.adopt(run.train(model, [site]))
        see(number, model.version, run.evaluate(model), run.random("draw").random())
    return model
"""
TWO = 'workflow=[{ type = "flow.py:first" }, { type = "flow.py:second" }]'


def test_stages_share_journal_and_numbers_and_rounds_count_for_each(flows):
    flows.write(STAGES)
    run = flows.jobs.run(adding({}), TWO).finished()
    rounds = ["fold", "evaluate"]
    cyclic = ["train", "adopt", "train", "adopt", "evaluate"]
    kinds = [*rounds, *rounds, "evaluate", *cyclic, *cyclic]
    assert shape(records(run)) == numbered(*kinds)
    assert [each.round for each in records(run)] == [1] * 2 + [2] * 3 + [3] * 5 + [4] * 5
    seen = flows.seen()
    # A later stage does nothing before its first round.
    assert "run.train() was called before the first round" in seen.pop(3)
    # What the stage before returned is what this one begins with.
    model = seen[3].removeprefix("'second', ").rpartition(", {")[0]
    assert model.startswith("Model(round=2, version=2")
    assert [line[:4] for line in seen] == ["'fir", "1, 1", "2, 2", "'sec", "3, 4", "4, 6"]
    # A generator of one name is another one in each stage.
    assert len({line.rpartition(", ")[2] for line in seen if line[0].isdigit()}) == 4
    assert run.directory.final_model.samefile(run.directory.checkpoint(4))
    # The first stage would ask for more, where the second one began before.
    with pytest.raises(UsageError, match="rounds is 2 there and 3 here, and counts for each of"):
        flows.jobs.go_on(run, adding({}), TWO, "rounds=3")


def test_a_condition_ends_a_stage_and_not_the_run(flows):
    # The first stage has the score of round 1; the second one those of rounds 2 and 3.
    script = adding({}, "[0.9, 0.5, 0.9][number - 1]")
    flows.write(STAGES.replace("run.evaluate(model))\n    for", "None)\n    for"))
    run = flows.jobs.run(script, TWO, "rounds=3", 'stop_when="accuracy >= 0.8"').finished()
    assert [each.round for each in of_kind(run, EndedEarly)] == [1, 3]
    assert run.directory.final_model.samefile(run.directory.checkpoint(3))
    assert "in round 3" in run.summary.ended_early


DRAWS = """
def flow(run):
    model = run.initial_model()
    names = run.random("sites")
    for number in run.rounds():
        assert run.random("sites") is names
        see(number, names.sample(run.all_sites, 2), run.random("other").random())
        see(*(run.order(number, each) for each in ("fixed", "random", ["site-3", "site-2"])))
        model = run.fold(model, run.train(model, run.sites, min_updates=1))
        run.log("drawn", number)
        break_off(f"{number}")
    return model
"""


def test_draws_and_orders_are_the_same_on_replay_and_a_value_is_logged_once(flows):
    how = ["clients.count=3", "clients.suspend_after=1", QUIET]
    script = adding({("site-2", 4): "raise KeyError('oops')"})
    run = flows.broken(DRAWS, *how, "rounds=6", place="5", script=script)
    live = flows.seen()
    resumed = flows.resume(run, DRAWS, *how, "rounds=6", script=script)
    seen = flows.seen()
    assert seen[: len(live)] == live
    assert len({line[3:] for line in seen[::2]}) == 6
    # Orders leave out who is asked no more.
    fixed, drawn, listed = zip(*map(eval, seen[1::2]), strict=True)
    assert list(fixed) == [["site-1", "site-2", "site-3"]] * 4 + [["site-1", "site-3"]] * 2
    assert list(listed) == [["site-3", "site-2"]] * 4 + [["site-3"]] * 2
    assert [sorted(each) for each in drawn] == list(fixed) != list(drawn)
    # What was logged after the last effect that counts is logged again, and no other value.
    logged = [each for each in of_kind(resumed, SiteLog) if each.key == "drawn"]
    assert sorted({(each.round, each.value) for each in logged}) == [(n, n) for n in range(1, 7)]
    assert len(logged) <= 7
    flows.finish(DRAWS, *how, "seed=8", "rounds=1")
    assert flows.seen()[0] != seen[0]


def test_the_last_site_of_a_round_is_not_the_first_of_the_next(flows):
    text = """
    def flow(run):
        orders = []
        for number in run.rounds():
            orders.append(run.order(number, "random_without_same_in_a_row"))
        see(any(one[-1] == next[0] for one, next in zip(orders, orders[1:])))
        see(len({tuple(each) for each in orders}))
        plain = [run.order(number + 1, "random") for number in range(len(orders))]
        see(any(one[-1] == next[0] for one, next in zip(plain, plain[1:])))
        return run.initial_model()
    """
    flows.finish(text, "clients.count=3", "rounds=100", QUIET)
    assert flows.seen() == ["False", "6", "True"]
