"""``run.train`` is lazy, and what becomes of updates until they are folded."""

from functools import partial

import pytest
from flows import numbered, records, shape
from journal_support import flip
from nightly_cases import first_and_nightly
from training_scripts import LARGE, QUIET, adding, noisy, of_kind, results, trained

from flstream.errors import ResumeRefusedError
from flstream.server import training_tasks
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import RoundStarted


def test_a_training_that_is_neither_read_nor_folded_is_refused_by_its_line(flows):
    text = """
    idle = run.train(model, run.sites)
    see(repr(idle))
    if number == 1:
        model = run.fold(model, idle)
    """
    error = flows.fail(text, QUIET)
    assert flows.seen() == [f"'<updates of round {each}, not yet trained>'" for each in (1, 2)]
    line = 1 + (flows.jobs.folder / "flow.py").read_text().splitlines().index(
        "        idle = run.train(model, run.sites)"
    )
    assert error.startswith(
        f"train(model 1, site-1, site-2) of round 2, line {line} of the workflow, was neither read"
    )


def test_nobody_trains_without_sites_and_a_round_without_a_model_is_a_round(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            if number == 2:
                model = run.fold(model, run.train(model, ["site-1"]))
        nobody = run.train(model, [], min_updates=0)
        see(list(nobody), nobody.sites, dict(nobody.failures))
        return model
    """
    run = flows.finish(text, script=adding({}))
    assert flows.seen() == ["[], [], {}"]
    assert shape(records(run)) == ["1 fold", "2 train"]
    assert records(run)[0].round == 2
    assert [each["round"] for each in run.summary.metrics] == [1, 2]
    begun = of_kind(run, RoundStarted)
    assert (begun[0].round, begun[0].sites) == (2, ["site-1"])


FOLD = """
updates = run.train(model, run.sites)
%s
see(waiting())
model = run.fold(model, updates)
see(waiting())
del updates
see(waiting())
"""
SIX = ["clients.count=6", "rounds=1", QUIET]


@first_and_nightly(
    "how",
    [["clients.parallel=1", LARGE], [], ["clients.parallel=2"]],
    ids=["in a sum", "own", "in memory"],
)
@pytest.mark.usefixtures("processes")
def test_updates_that_are_read_first_wait_in_files_and_fold_to_the_same_bits(flows, how):
    due = results(flows.finish(FOLD % "", *SIX, *how))
    assert flows.seen() == ["[]", "[]", "[]"]
    run = flows.finish(FOLD % "len(updates)", *SIX, *how)
    assert results(run) == due
    names = [f"effect-0001/site-{number}.safetensors" for number in range(1, 7)]
    # They stay as long as the workflow refers to them, and until the next model is durable.
    assert flows.seen() == [str(names)] * 3
    assert not run.directory.updates(1).parent.exists()


def test_updates_that_were_read_may_be_folded_again_and_others_may_not(flows):
    text = """
    updates = run.train(model, run.sites)
    %s
    one = run.fold(model, updates)
    see(one.digest == run.fold(model, updates).digest)
    model = one
    """
    flows.finish(text % "len(updates)", "rounds=1", QUIET)
    assert flows.seen() == ["True"]
    error = flows.fail(text % "", "rounds=1", QUIET)
    assert error.startswith("run.fold() was given updates of round 1 that were folded as they came")


def test_updates_that_wait_survive_a_kill_and_what_came_after_the_last_record_is_done_again(flows):
    text = """
    updates = run.train(model, ["site-1"])
    others = run.train(model, ["site-2"])
    see(updates.sites)
    break_off()
    model = run.fold(model, [*updates, *others])
    """
    due = results(flows.finish(text, "rounds=1", QUIET))
    run = flows.broken(text, "rounds=1", QUIET)
    path = run.directory.updates(1) / "site-1.safetensors"
    sound = path.read_bytes()
    flip(path)
    with pytest.raises(ResumeRefusedError, match=f"needs an update .*: {path} has .* round 0 is w"):
        flows.jobs.go_on(run, noisy(), flows.write(text), "rounds=1", QUIET)
    path.write_bytes(sound)
    with EventLog(run.directory.events) as log:
        log.write(RoundStarted(round=1, sites=["site-2"]))
    resumed = flows.resume(run, text, "rounds=1", QUIET)
    assert results(resumed) == due
    assert shape(records(resumed)) == numbered("train", "train", "fold")
    assert [each.sites for each in of_kind(resumed, RoundStarted)] == [["site-1"], ["site-2"]]
    # What was read before is not trained again.
    assert trained(resumed, "site-1") == trained(resumed, "site-2") == [1]


def test_whatever_is_read_of_updates_has_the_sites_train(flows):
    ways = "bool(each)", "each.sites", "each.failures", "each[:]", "list(each)", "len(each)"
    text = f"each = run.train(model, run.sites)\neval({ways}[number - 1])"
    run = flows.finish(text, f"rounds={len(ways)}")
    assert trained(run, "site-1") == [*range(1, 1 + len(ways))]


@pytest.mark.parametrize(("room", "read", "words"), [(14, "len(updates)", "20"), (12, "", "8")])
def test_the_disk_has_to_take_the_whole_cohort_where_updates_are_read_first(
    flows, monkeypatch, room, read, words
):
    # The disk is said to have room for so many models. Of twenty sites, folded as they come, eight
    # updates and two sums (of 8 bytes for 4) wait.
    check = partial(training_tasks.check_round, free=lambda folder: room * 1200128)
    monkeypatch.setattr(training_tasks, "check_round", check)
    many = ["clients.count=20", "clients.parallel=1", LARGE, "rounds=1", QUIET]
    assert f"{words} updates in waiting" in flows.fail(FOLD % read, *many)


def test_the_second_training_of_a_round_has_another_seed_and_the_state_of_the_first(flows):
    text = """
    scored = run.fold(model, run.train(model, ["site-1"]))
    first = run.train(model, ["site-1", "site-2"])
    len(first)
    second = run.train(model, ["site-2"])
    len(second)
    run.evaluate(scored)
    one = run.fold(model, first)
    model = run.fold(model, second)
    """
    run = flows.finish(text, "rounds=1", script=noisy())
    assert trained(run, "site-2") == [1, 1]
    assert len({each.model.digest for each in records(run) if each.model}) == 3
