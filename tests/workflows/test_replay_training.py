"""``run.train`` is lazy, and what becomes of updates until they are folded."""

from functools import partial

import pytest
from flows import records, shape
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import LARGE, QUIET, adding, mean_added, noisy, of_kind, results, trained

from flstream.server import trainer
from flstream.telemetry.events import RoundStarted


def test_what_is_never_read_is_never_asked(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            idle = run.train(model, run.sites)
            see(repr(idle))
            if number == 2:
                model = run.fold(model, run.train(model, ["site-1"]))
        nobody = run.train(model, [], min_updates=0)
        see(list(nobody), nobody.sites, dict(nobody.failures))
        return model
    """
    run = flows.finish(text, script=adding({}))
    *seen, nobody = flows.seen()
    assert seen == [f"'<updates of effect {each}, not yet trained>'" for each in (1, 2)]
    assert nobody == "[], [], {}"
    # It has its number all the same, so that those after it do not depend on who reads what.
    assert shape(records(run)) == ["3 train", "4 fold", "5 train"]
    assert records(run)[0].round == 2
    # A round that makes no model is a round all the same, and begun where sites are asked.
    assert [each["round"] for each in run.summary.metrics] == [1, 2]
    begun = of_kind(run, RoundStarted)
    assert (begun[0].round, begun[0].sites) == (2, ["site-1"])


FOLD = """
def flow(run):
    model = run.initial_model()
    for _ in run.rounds():
        updates = run.train(model, run.sites)
        %s
        see(waiting())
        model = run.fold(model, updates)
        see(waiting())
    return model
"""
SIX = ["clients.count=6", "rounds=1", QUIET]


@first_and_nightly(
    ("how", "files"),
    [
        (["clients.parallel=1", LARGE], 6),
        ([], 0),
        (["clients.parallel=2"], 0),
    ],
    ids=["in a sum", "own", "in memory"],
)
@pytest.mark.usefixtures("processes")
def test_updates_that_are_read_first_wait_where_they_lie_and_fold_to_the_same_bits(
    flows, how, files
):
    due = results(flows.finish(FOLD % "", *SIX, *how))
    assert flows.seen() == ["[]", "[]"]
    assert results(flows.finish(FOLD % "len(updates)", *SIX, *how)) == due
    names = [f"effect-0001/site-{number}.safetensors" for number in range(1, files + 1)]
    assert flows.seen() == [str(names), "[]"]


@pytest.mark.parametrize(
    "read", ["bool(updates)", "updates.sites", "updates.failures", "updates[:]", "list(updates)"]
)
def test_whatever_is_read_of_updates_has_the_sites_train(flows, read):
    run = flows.finish(FOLD.replace("model = run.fold(model, updates)", "") % read, "rounds=1")
    assert trained(run, "site-1") == [1]


@pytest.mark.parametrize(("room", "read", "words"), [(14, "len(updates)", "20"), (12, "", "8")])
def test_the_disk_has_to_take_the_whole_cohort_where_updates_are_read_first(
    flows, monkeypatch, room, read, words
):
    # The disk is said to have room for so many models. Of twenty sites, folded as they come, eight
    # updates and two sums (of 8 bytes for 4) wait.
    check = partial(trainer.check_round, free=lambda folder: room * 1200128)
    monkeypatch.setattr(trainer, "check_round", check)
    many = ["clients.count=20", "clients.parallel=1", LARGE, "rounds=1", QUIET]
    assert f"{words} updates in waiting" in flows.fail(FOLD % read, *many)


AGAIN = """
def flow(run):
    model = run.initial_model()
    for _ in run.rounds():
        scored = run.fold(model, run.train(model, ["site-1"]))
        first = run.train(model, ["site-1", "site-2"])
        len(first)
        second = run.train(model, ["site-2"])
        len(second)
        see(waiting())
        run.evaluate(scored)
        see(waiting())
        one = run.fold(model, first)
        other = run.fold(model, second)
        see(one.round, one.version, other.round, other.version)
    return one
"""


@pytest.mark.usefixtures("processes")
def test_a_site_that_is_asked_for_more_first_has_its_update_pulled_into_a_file(flows):
    run = flows.finish(AGAIN, "rounds=1", script=adding({}))
    first = [f"effect-0003/site-{number}.safetensors" for number in (1, 2)]
    assert flows.seen() == [
        str(first[1:]), str([*first, "effect-0004/site-2.safetensors"]), "1, 2, 1, 3",
    ]  # fmt: skip
    before = load_file(run.directory.checkpoint(0))
    for name, due in mean_added(before, ["site-1", "site-2"]).items():
        assert load_file(run.directory.final_model)[name].equal(due)


def test_the_second_training_of_a_round_has_another_seed_and_the_state_of_the_first(flows):
    run = flows.finish(AGAIN, "rounds=1", script=noisy())
    assert trained(run, "site-2") == [1, 1]
    assert len({each.model.digest for each in records(run) if each.model}) == 3
