"""All processes of a run are killed at instants that matter; it goes on to the same bits."""

import pytest
from flows import Flows, models, records, shape
from nightly_cases import first_and_nightly
from training_scripts import LARGE, noisy, results

# A built-in workflow that dies after a chosen call of what carries it out.
DIES = """
from flstream.server.effects import EffectJournal
from flstream.server.model_store import ModelStore
from flstream.workflows.{name} import {name}


def flow(run, args):
    after(EffectJournal, "record", lambda args: f"{{args[1].round}} {{args[1].name}}")
    after(ModelStore, "finish", lambda args: f"{{args[2]}} renamed")
    after(ModelStore, "_rename_earlier", lambda args: f"{{args[1]}} half renamed")
    return {name}(run, args)


def after(owner, method, place):
    do = getattr(owner, method)

    def patched(*args, **kwargs):
        result = do(*args, **kwargs)
        die_here(place(args), everything=True)
        return result

    setattr(owner, method, patched)
"""
# The first site that scores the model of round 2 kills everything.
SCORES = """
    if flare.is_evaluate() and number == 2:
        mark = pathlib.Path(flare.system_info()["site_dir"]).parents[2] / "die-at"
        if mark.exists() and mark.read_text() == "2 evaluating":
            mark.unlink()
            psutil.Process().parent().parent().kill()
            os.killpg(0, signal.SIGKILL)
"""
SCRIPT = ("import pathlib\nimport psutil\n" + noisy()).replace(
    "    if flare.is_evaluate():\n", SCORES + "    if flare.is_evaluate():\n"
)
# What it sends of a body beside the model, where its workflow has one.
SCRIPT = SCRIPT.replace(
    "    flare.send(flare.FLModel(params=params",
    """    if "control" in model.meta:
        meta["control"] = {key: torch.randn(each.shape) for key, each in params.items()}
        meta["control"]["b"] = meta["control"]["b"].double()
    flare.send(flare.FLModel(params=params""",
)
# What the built-in ones take; the flow around them takes whatever there is.
ARGS = [
    "workflow.args.order=fixed",
    "workflow.args.aggregators=[site-1, site-2, site-3]",
    "workflow.args.start_task_timeout=300",
    "workflow.args.progress_timeout=7200",
    "workflow.args.fedprox_mu=0",
]
HOW = ["clients.count=3", "rounds=3", *ARGS, LARGE]
SHARED = "clients.parallel=2"
CASES = {
    "fedavg": ["2 train", "2 renamed", "2 fold", "2 evaluating", "2 evaluate"],
    "scaffold": ["2 train", "2 renamed", "2 fold"],
    "swarm": ["2 renamed", "2 evaluating"],
    "cyclic": ["2 train", "2 adopt", "2 half renamed", "2 renamed", "2 evaluating"],
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """What comes of a workflow that nobody disturbs: results, records, and files of models."""
    found = {}

    def of(name):
        if name not in found:
            flows = Flows(jobs_in(tmp_path_factory.mktemp(name)))
            run = flows.run(DIES.format(name=name), *HOW, script=SCRIPT)
            found[name] = results(run), shape(records(run)), models(run)
        return found[name]

    return of


@first_and_nightly(
    ("name", "place"),
    [(name, place) for name, places in CASES.items() for place in places],
    brief=1,
)
@first_and_nightly("shared", [True, False])
def test_a_kill_of_everything_changes_no_bit(flows, undisturbed, name, place, shared):
    how = [*HOW, SHARED] if shared else HOW
    text = DIES.format(name=name)
    run = flows.killed_whole(text, *how, place=place, script=SCRIPT)
    resumed = flows.resume(run, text, *how, script=SCRIPT)
    due, numbered, files = undisturbed(name)
    assert results(resumed) == due
    # Every effect of the undisturbed run is on record, some of them in both sittings.
    assert sorted(set(shape(records(resumed)))) == sorted(numbered)
    assert models(resumed) == files
    assert not (resumed.directory.path / "updates").exists()
