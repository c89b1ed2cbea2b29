"""A workflow that asks for what cannot be done gets a sentence, and no traceback."""

import pytest
from flows import records, shape
from nightly_cases import first_and_nightly
from training_scripts import QUIET, adding

from flstream.errors import UsageError

FLOW = """
def flow(run):
    model = run.initial_model()
    first = model
    for number in run.rounds():
        updates = run.train(model, run.sites)
        if number == 2:
            {}
        model = run.fold(model, updates)
    return model
"""
RULE = "__import__('flstream.workflows').workflows.FoldRule"
MISTAKES = {
    "run.fold(first, updates)": (
        "run.fold() was given model 0 (round 0), and updates of model 1 (round 1); fold them into "
        "the model that they were trained from"
    ),
    "run.fold(model, [updates[0], updates[0]])": (
        "run.fold() was given two updates of site-1; fold them one after another"
    ),
    "run.fold(model, [])": "run.fold() was given no update; skip the fold where nobody has trained",
    "run.fold(model, updates[5:])": "run.fold() was given no update",
    "run.fold(model, [model])": "run.fold() was given a Model among its updates; give it what",
    "run.fold(model, ['site-1'])": "run.fold() was given a str among its updates",
    "run.adopt(updates)": (
        "run.adopt() takes the update of one site, and was given 2; use run.fold() for several"
    ),
    "run.adopt(updates[5:])": "run.adopt() takes the update of one site, and was given 0",
    "run.adopt(['site-1'])": "run.adopt() was given a str among its updates",
    "run.train(model, ['site-7'])": (
        "run.train() was given 'site-7', which is no site of the job; its sites are site-1, site-2"
    ),
    "run.train(model, ['site-1', 'site-1'])": (
        "run.train() was given site-1 twice; name each site once"
    ),
    "run.train(model, [])": (
        "run.train() was given no site that is still asked in round 2; give it at least one of "
        "run.sites, or min_updates=0"
    ),
    "run.order(number, 'sideways')": (
        "run.order() knows fixed, random, random_without_same_in_a_row and lists of sites, and not "
        "'sideways'"
    ),
    "run.order(number, ['site-7'])": "run.order() was given 'site-7', which is no site of the job",
    "run.train(model, run.sites, meta={'x': object()})": "meta cannot be sent",
    "run.train(model, run.sites, meta={'a': {'b': __import__('torch').ones(1)}})": (
        '["meta"]["a"]["b"] is a tensor, and beside the params only plain values travel'
    ),
    "run.train(None, run.sites)": "run.train() was given a NoneType as its model; give it what",
    "run.fold(None, updates)": "run.fold() was given a NoneType as its model; give it what",
    "run.evaluate(None)": "run.evaluate() was given a NoneType as its model; give it what",
    "run.train(model, 'site-1')": "run.train() was given 'site-1' as its sites; give it a list",
    "run.train(model, None)": "run.train() was given None as its sites; give it a list",
    "run.train(model, run.sites, min_updates=-1)": "was given min_updates=-1; give it a whole",
    "run.train(model, run.sites, min_updates='2')": "was given min_updates='2'; give it a whole",
    "run.train(model, run.sites, timeout=-5)": "was given timeout=-5; give it seconds above 0",
    "run.train(model, run.sites, timeout=float('nan'))": "was given timeout=nan; give it seconds",
    "run.log(3, 3)": "run.log() was given 3 as a name; give it text",
    "run.random(['x'])": "run.random() was given ['x'] as a name; give it text",
    "run.train(model, run.sites, meta=[1])": "was given a list as meta; give it a dict of plain",
    "run.train(model, run.sites, optimizer_params=1)": "was given a int as optimizer_params; give",
    f"run.fold(model, updates, {RULE}({{'site-1': 1.0}}))": "has no weight for site-2",
    "run.write_json('events.jsonl/x.json', 1)": "whose folder cannot be made: File exists",
    "next(run.rounds())": "run.rounds() was called in a loop over run.rounds()",
    "run.log('x', 10 ** 400)": "run.log('x') was given a int that is no float",
    "raise SystemExit(0)": " raised SystemExit: 0; see server.log",
    "raise KeyboardInterrupt": " raised KeyboardInterrupt; see server.log",
    "raise KeyError('mine')": " raised KeyError: 'mine'; see server.log",
    "run.nothing()": "raised AttributeError: 'Run' object has no attribute 'nothing'; see",
    "return 7": "the workflow flow.py:flow returned a int; it must return the model that the run",
    "return updates": "the workflow flow.py:flow returned a Updates; it must return the model",
}


@first_and_nightly("mistake", MISTAKES, brief=20)
def test_what_is_wrong_with_a_call_is_a_sentence(flows, mistake):
    text = FLOW.format(mistake)
    error = flows.fail(text, QUIET, "rounds=3", "clients.parallel=1", script=adding({}))
    assert MISTAKES[mistake] in error
    if "server.log" in error:
        # A defect of the workflow's own, whose line is named.
        lines = (flows.jobs.folder / "flow.py").read_text().splitlines()
        number = next(place for place, line in enumerate(lines, 1) if line.strip() == mistake)
        assert f"the workflow flow.py:flow failed: flow.py, line {number} raised" in error


BEFORE = {
    "run.train(model, run.sites)": "run.train() was called before the first round",
    "run.fold(model, [])": "run.fold() was called before the first round",
    "run.adopt([])": "run.adopt() was called before the first round",
}


@pytest.mark.parametrize("call", BEFORE)
def test_nothing_is_done_before_the_first_round(flows, call):
    text = f"""
    def flow(run):
        model = run.initial_model()
        {call}
        return model
    """
    error = flows.fail(text, QUIET, "clients.parallel=1", script=adding({}))
    assert f"{BEFORE[call]}; call it in the loop over run.rounds()" in error


@first_and_nightly(
    ("bodies", "meta", "sentence"),
    [
        ("task='zeros'", "None", "was given a body named 'task'; a name has small letters"),
        ("optimizer='zeros'", "None", "was given a body named 'optimizer'"),
        ("alpha='ones'", "None", "a body beside a model begins with zeros"),
        ("alpha='zeros'", "{'alpha': 3}", "run.train() was given a value 'alpha' in meta, and the"),
    ],
)
def test_a_body_has_a_name_of_its_own(flows, bodies, meta, sentence):
    text = f"""
    def flow(run):
        model = run.initial_model({bodies})
        for number in run.rounds():
            run.train(model, run.sites, meta={meta})
        return model
    """
    assert sentence in flows.fail(text, QUIET, "clients.parallel=1", script=adding({}))


def test_a_mistake_of_a_call_cannot_be_caught_either(flows):
    text = FLOW.format("""
            try:
                run.train(model, ["site-7"])
            except Exception:
                see("caught")
    """)
    assert "site-7" in flows.fail(text, QUIET, script=adding({}))
    assert flows.seen() == []


def test_a_workflow_that_returns_nothing_ends_with_its_newest_model_and_a_warning(flows):
    run = flows.finish(FLOW.format("return"), QUIET, script=adding({}))
    assert run.directory.final_model.samefile(run.directory.checkpoint(1))
    [warning] = run.summary.warnings
    assert "the workflow flow.py:flow returned nothing" in warning


# What it asks for depends on a file, as another program's would on the clock.
OTHER = {
    "other sites": (
        "sites = ['site-1'] if is_other(number) else run.sites\n"
        "        model = run.fold(model, run.train(model, sites))",
        "train(model 1, site-1, site-2)",
        "train(model 1, site-1)",
    ),
    "no evaluation": (
        "model = run.fold(model, run.train(model, run.sites))\n"
        "        if not is_other(number): run.evaluate(model)",
        "evaluate(model 2)",
        "train(model 2, site-1, site-2)",
    ),
    "another model": (
        "model = run.fold(model, run.train(model, run.sites))\n"
        "        run.evaluate(kept if is_other(number) else model)\n"
        "        kept = kept or model",
        "evaluate(model 2)",
        "evaluate(model 1)",
    ),
    "another number of updates": (
        "updates = run.train(model, run.sites, min_updates=1 + is_other(number))\n"
        "        model = run.fold(model, updates)",
        "train(model 1, site-1, site-2)",
        "train(model 1, site-1, site-2) with other sites, min_updates, timeout or meta",
    ),
    "some of the updates": (
        "updates = run.train(model, run.sites)\n"
        "        model = run.fold(model, updates[:1] if is_other(number) else updates[:])",
        "fold(model 1, updates of site-1, site-2 of effect 3)",
        "fold(model 1, updates of site-1 of effect 3)",
    ),
    "read first": (
        "updates = run.train(model, run.sites)\n"
        "        if is_other(number): len(updates)\n"
        "        model = run.fold(model, updates)",
        "fold(model 1, updates of effect 3)",
        "fold(model 1, updates of site-1, site-2 of effect 3)",
    ),
}


@pytest.mark.nightly
@first_and_nightly("other", OTHER, brief=1)
def test_another_effect_on_replay_than_before_is_an_error_that_names_both(flows, other):
    body, before, now = OTHER[other]
    text = f"""
def flow(run):
    model, kept = run.initial_model(), None
    for number in run.rounds():
        {body}
        see(number)
        if number == 2:
            die_here()
    return model


def is_other(number):
    return number == 2 and (HERE / "other").exists()
"""
    how = ["rounds=3", "clients.min_updates=1"]
    run = flows.killed(text, *how, script=adding({}))
    flows.seen()
    (flows.jobs.folder / "other").touch()
    kind = flows.write(text)
    resumed = flows.jobs.go_on(run, adding({}), kind, *how)
    assert resumed.summary.status == "failed"
    expected = f"of the workflow was {before} before the run was cut off, and is {now} now; "
    assert expected in resumed.summary.error
    assert "run.random()" in resumed.summary.error
    # Nothing was done, and nothing was recorded.
    assert shape(records(resumed)) == shape(records(run))
    # The program as it was goes on.
    (flows.jobs.folder / "other").unlink()
    flows.seen()
    flows.resume(run, text, *how, script=adding({}))


def test_a_workflow_that_was_changed_is_refused_before_anything_is_done(flows):
    run = flows.run(FLOW.format("raise KeyError('mine')"), QUIET, script=adding({}))
    kind = flows.write(FLOW.format("pass"))
    with pytest.raises(UsageError, match=r"flow\.py"):
        flows.jobs.go_on(run, adding({}), kind, QUIET)
