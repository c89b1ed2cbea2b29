"""A workflow that asks for what cannot be done gets a sentence, and no traceback."""

import pytest
from flows import Flows, records, shape
from training_scripts import QUIET, adding, plain

from flstream.errors import UsageError

# Calls by the sentence that refuses each: first those before the first round.
BEFORE = {
    "run.train(model, run.sites)": "run.train() was called before the first round; call it in the",
    "run.start('site-1', model)": "run.start() was called before the first round",
    "run.initial_model(task='zeros')": "a body named 'task'; a name has small letters",
    "run.initial_model(alpha='ones')": "a body beside a model begins with zeros",
}
MISTAKES = {
    "run.fold(first, updates)": "given model 0 (round 0), and updates of model 1 (round 1); fold",
    "run.fold(model, [updates[0], updates[0]])": "was given an update of site-1 twice; give it",
    "run.fold(model, [])": "run.fold() was given no update; skip the fold",
    "run.fold(model, updates, FoldRule([1.0]))": "has 1 weights for 2 updates; give one for each",
    "run.adopt(updates)": "takes the update of one site, and was given 2; use run.fold()",
    "run.train(model, ['site-7'])": "no site of the job; its sites are site-1, site-2",
    "run.train(model, ['site-1', 'site-1'])": "was given site-1 twice; name each site once",
    "run.train(model, [])": "no site that is still asked in round 2; give it at least one of run.s",
    "run.train(model, 'site-1')": "run.train() was given 'site-1' as its sites; give it a list",
    "run.train(model, [['site-1']])": "run.train() was given [['site-1']] as its sites; give it a",
    "run.train(model, run.sites, timeout=10 ** 400)": "give it seconds above 0",
    "run.train(model, run.sites, min_updates=-1)": "was given min_updates=-1; give it a whole",
    "run.train(model, run.sites, meta={'a': {'b': [0, torch.ones(1)]}})": (
        '["meta"]["a"]["b"][1] is a tensor'
    ),
    "run.log('x', 10 ** 400)": "run.log('x') was given a int that is no float",
    "run.write_json('events.jsonl/x.json', 1)": "whose folder cannot be made: File exists",
    "run.write_json('sites/x.json', 1)": "give it one with a folder of its own",
    "run.write_json('own/x.json', {1, 2})": "was given what JSON cannot hold",
    "run.collect('best', run.sites)": "what it collects is 'submit_model'",
    "run.score(updates, ['site-2'])": "give it what",
    "run.score(model, ['site-9'])": "site-9",
}
# These refuse before they ask for anything, so that a program may catch what they raise.
CATCHABLE = {
    "run.order(number, 'sideways')": "random_without_same_in_a_row and lists of sites, and not 's",
    "run.order(number, ['site-7'])": "run.order() was given 'site-7', which is no site of the job",
    "next(run.rounds())": "run.rounds() was called in a loop over run.rounds()",
}
# While site-2 trains, after site-1 has failed.
IN_FLIGHT = {
    "run.start('site-2', model)": "run.start() was given site-2, whose training is in flight;",
    "run.train(model, ['site-2'])": "run.train() was given site-2, whose training is in flight;",
    "run.start('site-7', model)": "run.start() was given 'site-7', which is no site of the job",
    "run.start('site-1', 'model')": "run.start() was given a str as its model; give it what",
    "run.start('site-1', model, 0)": "run.start() was given timeout=0; give it seconds above 0",
    "run.start('site-1', model, meta=1)": "run.start() was given a int as meta; give it a dict",
    "run.next(max_wait=-1)": "run.next() was given max_wait=-1; give it seconds from 0, math.inf,",
    "run.next(max_wait=True)": "run.next() was given max_wait=True; give it seconds from 0",
    "run.next(max_wait=1, since='site-1')": "was given a str as since; give it an update, from",
    "run.next(since=failed)": "was given a Update as since; give it an update, from whose answer",
    "run.fold(model, [failed])": "the answer of site-1, which failed and has no update: client",
    "run.fold(model, [failed], at=['site-1'])": "the answer of site-1, which failed",
}
AFTER = {
    "run.next()": "with no training in flight, so no answer can come;",
    "run.next(max_wait=1)": "with no training in flight, so no answer can come;",
}
ALL = BEFORE | MISTAKES | CATCHABLE | IN_FLIGHT | AFTER


@pytest.fixture(scope="module")
def sentences(tmp_path_factory, jobs_in):
    """The sentences of a run that is refused all these calls, and has trained all the same."""
    flows = Flows(jobs_in(tmp_path_factory.mktemp("mistakes")))
    text = f"""
    import torch

    def flow(run):
        first = model = run.initial_model()
        refused(run, {list(BEFORE)}, model=model)
        for number in run.rounds():
            updates = run.train(model, run.sites)
            if number == 2:
                refused(run, {list(MISTAKES | CATCHABLE)},
                        first=first, model=model, updates=updates, number=number)
            model = run.fold(model, updates)
        run.start("site-1", model, meta={{"fails": True}})
        failed = run.next()
        run.start("site-2", model)
        refused(run, {list(IN_FLIGHT)}, model=model, failed=failed)
        run.next()
        refused(run, {list(AFTER)})
        return model
    """
    fails = plain("if model.meta.get('fails'): raise KeyError('k')")
    run = flows.finish(text, QUIET, script=fails)
    names = [record.name for record in records(run)]
    assert names == ["fold", "train", "fold", "start", "next", "start", "next"]
    return flows.sentences()


@pytest.mark.parametrize("call", ALL)
def test_what_is_wrong_with_a_call_is_a_sentence_that_no_workflow_can_catch(sentences, call):
    sentence, is_catchable = sentences[call]
    assert ALL[call] in sentence
    assert is_catchable == (call in CATCHABLE)


FLOW = """
model = run.fold(model, run.train(model, run.sites))
{}
"""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("raise KeyError('mine')", " raised KeyError: 'mine'; see server.log"),
        ("return 7", "flow.py:flow returned a int; it must return the model"),
        ("raise KeyboardInterrupt", " raised KeyboardInterrupt; see server.log"),
        ("raise type('Own', (BaseException,), {})('mine')", " raised Own: mine; see server.log"),
    ],
)
def test_a_defect_of_a_workflow_is_a_sentence_with_its_line(flows, line, sentence):
    error = flows.fail(FLOW.format(line), QUIET, script=adding({}))
    assert sentence in error
    if "server.log" in sentence:
        text = (flows.jobs.folder / "flow.py").read_text().splitlines()
        number = next(place for place, each in enumerate(text, 1) if each.strip() == line)
        assert f"the workflow flow.py:flow failed: flow.py, line {number} raised" in error


def test_a_workflow_that_returns_nothing_ends_with_its_newest_model_and_a_warning(flows):
    run = flows.finish(FLOW.format("return"), QUIET, script=adding({}))
    assert run.directory.final_model.samefile(run.directory.checkpoint(1))
    [warning] = run.summary.warnings
    assert "the workflow flow.py:flow returned nothing" in warning


# What it asks for depends on a file, as another program's would on the clock.
OTHER = """
other = (HERE / "other").read_text() if number == 2 else ""
sites = ["site-1"] if other == "other sites" else run.sites
updates = run.train(model, sites, min_updates=1 + (other == "more updates"))
updates = updates[:1] if other == "some updates" else updates[:]
model = run.fold(model, updates)
if other != "no evaluation":
    run.evaluate(model)
if number == 2:
    run.start("site-2" if other == "other start" else "site-1", model)
    run.next()
    break_off()
"""
TRAIN, FOLD = "train(model 1, site-1, site-2)", "fold(model 1, updates of site-1, site-2 of effect"
HOW = ["rounds=3", "clients.min_updates=1"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory, jobs_in):
    """A run that was broken off after its second round, and what it is a run of."""
    flows = Flows(jobs_in(tmp_path_factory.mktemp("broken")))
    (flows.jobs.folder / "other").write_text("")
    return flows, flows.broken(OTHER, *HOW, script=adding({}))


OTHERS = "sites, min_updates, timeout, meta or parts (receive, send, late)"


@pytest.mark.parametrize(
    ("other", "before", "now"),
    [
        ("other sites", TRAIN, "train(model 1, site-1)"),
        ("no evaluation", "evaluate(model 2)", "start(model 2, site-1)"),
        ("other start", "start(model 2, site-1)", "start(model 2, site-2)"),
        (
            "more updates",
            TRAIN,
            f"{TRAIN} with other {OTHERS}",
        ),
        ("some updates", f"{FOLD} 4)", "fold(model 1, updates of site-1 of effect 4)"),
    ],
)
def test_another_effect_on_replay_than_before_is_an_error_that_names_both(
    broken, other, before, now
):
    flows, run = broken
    (flows.jobs.folder / "other").write_text(other)
    resumed = flows.jobs.go_on(run, adding({}), flows.write(OTHER), *HOW)
    assert resumed.summary.status == "failed"
    assert f"was {before} before the run was cut off, and is {now} now" in resumed.summary.error
    assert "run.random()" in resumed.summary.error
    # Nothing was done, and nothing was recorded.
    assert shape(records(resumed)) == shape(records(run))


def test_a_program_that_asks_as_before_goes_on_and_a_changed_one_is_refused(broken):
    flows, run = broken
    with pytest.raises(UsageError, match=r"flow\.py"):
        flows.jobs.go_on(run, adding({}), flows.write(OTHER + "\n"), *HOW)
    (flows.jobs.folder / "other").write_text("")
    assert flows.resume(run, OTHER, *HOW, script=adding({})).summary.rounds_completed == 3


def test_a_rule_with_weights_and_those_of_the_job_are_refused_together(flows):
    text = "model = run.fold(model, run.train(model, run.sites), FoldRule(%s))"
    how = [QUIET, "rounds=1", "aggregation.weights={site-1=2.0}"]
    flows.finish(text % "normalise=True", *how, script=adding({}))
    error = flows.fail(text % "2.0", *how, script=adding({}))
    assert error.startswith("run.fold() was given a rule with weights, and aggregation.weights has")
