"""``run.train`` is lazy, and what becomes of updates until they are folded."""

import re

import pytest
from flows import models, records, shape, trainings
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import LARGE, adding, mean_added, noisy, results

from flstream.telemetry.events import RoundStarted

SIX = ["clients.count=6"]
HOW = {
    "own": [],
    "in memory": ["clients.parallel=2"],
    "in files": ["clients.parallel=2", LARGE],
    "in a sum": ["clients.parallel=1", LARGE],
}


def test_what_is_never_read_is_never_asked(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            idle = run.train(model, run.sites)
            see(repr(idle))
            if number == 2:
                model = run.fold(model, run.train(model, ["site-1"]))
        return model
    """
    run = flows.finish(text, script=adding({}))
    assert flows.seen() == [f"'<updates of effect {each}, not yet trained>'" for each in (1, 2)]
    # It has its number all the same, so that those after it do not depend on who reads what.
    assert shape(records(run)) == ["3 train", "4 fold"]
    assert records(run)[0].round == 2
    # A round that makes no model is a round all the same.
    assert run.summary.rounds_completed == 2
    assert [each["round"] for each in run.summary.metrics] == [1, 2]


FOLD = """
def flow(run):
    model = run.initial_model()
    for _ in run.rounds():
        updates = run.train(model, run.sites)
        %s
        model = run.fold(model, updates)
        run.evaluate(model)
    return model
"""
# Each line reads the updates in a way of its own.
READS = [
    "assert updates",
    "len(updates)",
    "updates.sites",
    "updates.failures",
    "[each.metrics for each in updates]",
    "updates = updates[:]",
    "updates = list(updates)",
]


@pytest.fixture(scope="module")
def unread(tmp_path_factory, jobs_in):
    """Results of rounds whose updates are folded as they come, for either size of model."""
    from flows import Flows

    flows = Flows(jobs_in(tmp_path_factory.mktemp("unread")))
    return {
        "large": results(flows.run(FOLD % "", *SIX, LARGE)),
        "tiny": results(flows.run(FOLD % "", *SIX)),
    }


@first_and_nightly("how", HOW.values(), ids=HOW)
def test_folded_unread_or_read_first_the_bits_are_the_same(flows, unread, how):
    due = unread["large" if LARGE in how else "tiny"]
    assert results(flows.run(FOLD % "len(updates)", *SIX, *how)) == due
    if how:
        assert results(flows.run(FOLD % "", *SIX, *how)) == due


@first_and_nightly("read", READS, brief=3)
def test_whatever_is_read_of_updates_has_the_sites_train(flows, read):
    text = f"""
    def flow(run):
        model = run.initial_model()
        for _ in run.rounds():
            updates = run.train(model, run.sites)
            {read}
        return model
    """
    run = flows.finish(text, "rounds=1")
    assert trainings(run, "site-1") == 1


WAITS = """
def flow(run):
    model = run.initial_model()
    for _ in run.rounds():
        updates = run.train(model, run.sites)
        len(updates)
        see(waiting())
        model = run.fold(model, updates)
        see(waiting())
    return model
"""


@first_and_nightly(("how", "wait"), [("own", False), ("in files", True), ("in a sum", True)])
def test_updates_that_are_read_wait_where_they_lie_or_in_files(flows, how, wait):
    flows.finish(WAITS, *SIX, *HOW[how], "rounds=1")
    waiting, left = flows.seen()
    names = [f"'effect-0001/site-{number}.safetensors'" for number in range(1, 7)]
    assert waiting == (f"[{', '.join(names)}]" if wait else "[]")
    assert left == "[]"


# The disk is said to have room for so many models, and no byte more.
ROOM = """
def flow(run):
    from functools import partial
    from flstream.server import trainer

    check, models = trainer.check_round, %d
    size = 1200128
    trainer.check_round = partial(check, free=lambda folder: models * size)
    model = run.initial_model()
    for _ in run.rounds():
        updates = run.train(model, run.sites)
        %s
        model = run.fold(model, updates)
    return model
"""


def test_the_disk_has_to_take_the_whole_cohort_where_updates_are_read_first(flows):
    # Of twenty sites, folded as they come, eight updates and two sums (of 8 bytes for 4) wait.
    many = ["clients.count=20", "clients.parallel=1", LARGE, "rounds=1"]
    flows.finish(ROOM % (14, "pass"), *many, script=adding({}))
    error = flows.fail(ROOM % (14, "len(updates)"), *many, script=adding({}))
    assert re.search(r"round 1 needs 24\.\d MiB of disk", error), error
    assert "20 updates in waiting" in error
    assert "8 updates in waiting" in flows.fail(ROOM % (12, "pass"), *many, script=adding({}))


LOST = """
def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        updates = run.train(model, run.sites)
        see(number, [(each.site, each.metrics) for each in updates])
        some = run.fold(model, updates[:2])
        if number == 2:
            die_here()
        rest = run.fold(model, updates[2:])
        model = rest
        see(some.digest, rest.digest)
        model = run.fold(model, run.train(model, run.sites))
    return model
"""


@pytest.mark.nightly
@first_and_nightly("how", ["own", "in memory"])
def test_a_fold_whose_updates_are_lost_repeats_just_those_tasks(flows, how):
    shared = ["clients.count=4", *HOW[how]]
    expected = flows.finish(LOST, *shared)
    due = flows.seen()
    run = flows.killed(LOST, *shared)
    flows.seen()
    before = [trainings(run, f"site-{number}") for number in range(1, 5)]
    resumed = flows.resume(run, LOST, *shared)
    assert results(resumed) == results(expected)
    assert flows.seen() == due
    after = [trainings(resumed, f"site-{number}") for number in range(1, 5)]
    # Those of the second fold once more, and all of them for the last training.
    assert before == [3, 3, 3, 3]
    assert after == [4, 4, 5, 5]
    # What is repeated is on record already, and is not recorded again.
    assert shape(records(resumed)) == shape(records(expected))


def test_updates_that_are_whole_on_disk_are_taken_up(flows):
    shared = ["clients.count=4", *HOW["in files"]]
    expected = flows.finish(LOST, *shared)
    run = flows.killed(LOST, *shared)
    # Of the two that wait, one is damaged.
    [folder] = (run.directory.path / "updates").iterdir()
    assert sorted(each.name for each in folder.glob("*.safetensors")) == [
        "site-3.safetensors", "site-4.safetensors",
    ]  # fmt: skip
    data = bytearray((folder / "site-3.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "site-3.safetensors").write_bytes(data)
    resumed = flows.resume(run, LOST, *shared)
    assert results(resumed) == results(expected)
    assert [trainings(resumed, f"site-{number}") for number in range(1, 5)] == [4, 4, 5, 4]
    assert not (run.directory.path / "updates").exists()


AGAIN = """
def flow(run):
    model = run.initial_model()
    for _ in run.rounds():
        first = run.train(model, ["site-1", "site-2"])
        len(first)
        second = run.train(model, ["site-2"])
        len(second)
        see(waiting())
        one = run.fold(model, first)
        other = run.fold(model, second)
        see(one.round, one.version, other.round, other.version)
    return other
"""


def test_a_site_that_is_asked_again_first_has_its_update_pulled_into_a_file(flows):
    expected = flows.finish(AGAIN, "rounds=1")
    assert flows.seen() == ["['effect-0001/site-2.safetensors']", "1, 1, 1, 2"]
    shared = flows.finish(AGAIN, "rounds=1", "clients.parallel=1")
    assert results(shared) == results(expected)
    assert trainings(expected, "site-2") == 2
    # The second training of a round has another seed, and goes on with the first one's state.
    assert len({each.model.digest for each in records(expected) if each.model}) == 2


@pytest.mark.nightly
def test_a_site_that_is_asked_to_score_first_has_its_update_pulled_into_a_file(flows):
    text = AGAIN.replace('second = run.train(model, ["site-2"])', "run.evaluate(scored)")
    text = text.replace("len(second)", "pass").replace("other = run.fold(model, second)", "pass")
    text = text.replace("one.version, other.round, other.version", "one.version")
    text = text.replace("return other", "return one").replace(
        "        first =", "        scored = run.fold(model, run.train(model, ['site-1']))\n"
        "        first =",
    )  # fmt: skip
    run = flows.finish(text, "rounds=1", script=adding({}))
    names = [f"'effect-0003/site-{number}.safetensors'" for number in (1, 2)]
    assert flows.seen() == [f"[{', '.join(names)}]", "1, 2"]
    before = load_file(run.directory.checkpoint(0))
    for name, due in mean_added(before, ["site-1", "site-2"]).items():
        assert load_file(run.directory.checkpoint(1))[name].equal(due)
    assert models(run) == [
        "round-0000.safetensors", "round-0001.safetensors", "round-0001.step-00.safetensors",
    ]  # fmt: skip


def test_a_training_is_told_of_where_it_is_done(flows):
    # What is asked for and never read is not begun, in the eyes of a report either.
    from flows import lines

    run = flows.finish(FOLD % "", "rounds=1", script=noisy())
    begun = [each for each in lines(run) if isinstance(each, RoundStarted)]
    assert [(each.round, each.sites) for each in begun] == [(1, ["site-1", "site-2"])]
