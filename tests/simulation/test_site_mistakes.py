"""What training code does wrong: a site that fails with a sentence, or a warning given once."""

import pytest
from nightly_cases import first_and_nightly
from run_fixtures import LOCAL
from training_scripts import QUIET, adding, plain

SEND = "flare.send(flare.FLModel(params=params, %s))"
# What a site does in place of its answer, and why it fails.
MISTAKES = {
    "raise KeyError('oops')": "client.py, line {line} raised KeyError: 'oops'",
    "raise ValueError('one\\n\\ttwo')": "raised ValueError: one two",
    "raise SystemExit(4)": "client.py exited with status 4",
    "raise SystemExit('enough')": "client.py ended itself: enough",
    "__import__('argparse').ArgumentParser('it').parse_args(['-x'])": (
        "client.py exited with status 2: it: error: unrecognized arguments: -x"
    ),
    "break": "ended without answering",
    "os.kill(os.getpid(), 9)": "was killed by SIGKILL",
    "os._exit(3)": "exited with status 3",
    "params.pop('w')": "tensor 'w' is missing",
    "params['w'] = 'text'": "'w' is a str",
    "params['w'] = params['w'].to_sparse()": "tensor 'w' is torch.sparse_coo on cpu; send it as a",
    "params['w'][7] = float('nan')": "is not finite: tensor 'w' at [7] is nan",
    "params['b'] = params['b'].T": "'b' has shape [5, 3] instead of [3, 5]",
    "params['new'] = torch.ones(1)": "'new' is not part of the model",
    "params = None": "has no params",
    "params['w'] = [1.0, 2.0]": "'w' is a list, not a tensor or array",
    "params[5] = params['w']": "5 cannot name a tensor, since it is no string",
    "params['b'][1, 0] = 1e300; meta = {'num_examples': 1e9}": "'b' at [1, 0], times the weight",
    "meta = {'num_examples': 0}": "meta['num_examples'] is 0, and an update's weight is",
    "meta = {'NUM_STEPS_CURRENT_ROUND': 1e16}": "meta['NUM_STEPS_CURRENT_ROUND'] is 1e+16, and",
    "flare.FLModel(params, 'HALF')": "params_type is 'HALF'; give it FULL or DIFF",
    SEND % "metrics={'loss': torch.zeros(2)}": "is a Tensor of shape [2] that is no number",
    SEND % "metrics={'loss': 10**400}": "the metric 'loss' is an int that no float can hold",
    "params['b'] = params['b'].half(); flare.send(flare.FLModel(params=params))": (
        "client.py, line {line} raised ClientError: the update does not fit the model: tensor 'b' "
        "has dtype F16 instead of F64; convert it before send(), or build the model in that dtype"
    ),
    "flare.send({'w': 1})": "send() was given a dict; give it an FLModel, such as",
    "flare.FLModel(params=torch.nn.Linear(1, 1))": "(params=...) was given a Linear; give it tens",
    "flare.FLModel(metrics=[1.0])": "FLModel(metrics=...) was given a list; give it numbers by",
    "flare.FLModel(meta=3)": "FLModel(meta=...) was given a int; give it plain values by name",
    SEND % "metrics={'loss': 'low'}": "the metric 'loss' is a str that is no number; send one",
    SEND % "metrics={1: 2.0}": "1 cannot name a metric, since it is no string; rename it",
    SEND % "metrics={'round': 77.0}": "'round'",
    SEND % "meta={'num_examples': 'many'}": "meta['num_examples'] is a str that is no number",
    SEND % "meta={'a': {'b': [0, torch.ones(2)]}}": '["meta"]["a"]["b"][1] is a tensor',
    SEND % "meta={'f': object()}": "meta cannot be sent",
    SEND % "meta={'large': bytes(2 << 20)}": "and 1048576 is most; send less",
    "meta = {'num_examples': 1.5e308}": "1.5e+308, and an update's weight is a number from",
    "flare.receive(into=params)": "was received before, into other tensors; give into to the first",
    "while flare.is_running(): flare.receive()": "turns of the loop have gone by without an answer",
    "__import__('numpy').loadtxt('data/mayo.csv')": "a site works in a folder of its own",
    "open('model.py')": "it is in the job's folder, {folder}",
    "open('none.csv')": "the job's is {folder}",
}
ENDS = {
    "os.kill(os.getpid(), 9)": ("SIGKILL", None),
    "os._exit(3)": ("", 3),
    "raise SystemExit(4)": ("", 4),
    "raise SystemExit('enough')": ("", 1),
    "raise KeyError('oops')": ("", None),
}
SITES = {mistake: f"site-{number}" for number, mistake in enumerate(MISTAKES, 2)}


@pytest.fixture(scope="module")
def failures(tmp_path_factory, jobs_in):
    """The failures of a run in which each site but the first makes a mistake of its own."""
    jobs = jobs_in(tmp_path_factory.mktemp("mistakes"), engine=LOCAL)
    script = adding({(site, 1): mistake for mistake, site in SITES.items()})
    how = [f"clients.count={len(SITES) + 1}", "clients.min_updates=1", "rounds=1", QUIET]
    run = jobs.run(script, *how).finished()
    assert "KeyError: 'oops'" in run.directory.site_log("site-2").read_text()
    return {failure.site: failure for failure in run.summary.failures}, script, jobs.folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_a_site_does_wrong_is_a_sentence(failures, mistake):
    by_site, script, folder = failures
    failure = by_site[SITES[mistake]]
    lines = [line.strip() for line in script.splitlines()]
    line = lines.index(mistake) + 1 if mistake in lines else 0
    assert MISTAKES[mistake].format(line=line, folder=folder) in failure.reason
    if mistake in ENDS:
        assert (failure.signal, failure.exit_status) == ENDS[mistake]


LAZY = """
if KIND == "DIFF":
    for each in params.values():
        each.zero_()
if site == "site-1" or model.current_round == 0:
    params["steps"] += 1
if KIND == "PARTIAL":
    params, meta = {"steps": params["steps"]}, {"partial": True}
"""


@first_and_nightly(
    ("kind", "how"),
    [
        ("DIFF", ["clients.parallel=1"]),
        ("FULL", ["workflow.type=cyclic"]),
        ("PARTIAL", []),
        ("FULL", []),
    ],
    brief=2,
)
def test_an_update_that_is_what_was_received_is_told_of_once(jobs, kind, how):
    sends = "params=params, meta=meta, params_type='DIFF' if KIND == 'DIFF' else 'FULL'"
    run = jobs.run(plain(LAZY, before=f"KIND = {kind!r}", sends=sends), "rounds=4", *how).finished()
    [warning] = run.summary.warnings
    assert warning.startswith("in round 2, the update of site-2 is equal to the model that was rec")
