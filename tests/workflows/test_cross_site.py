"""Every site scores every model: the global ones, and the last of each site.

The score of a site tells exactly which model it was given.
"""

import json
import zlib
from pathlib import Path

import pytest
import torch
from flows import numbered, records, shape
from journal_support import flip
from safetensors.torch import load_file
from training_scripts import LARGE, noisy, of_kind

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.runs.resume import plan_resume
from flstream.telemetry.events import ModelsCollected, ModelScored

SITES = ["site-1", "site-2", "site-3"]
THREE = "clients.count=3"
FINAL, BEST = "SRV_FL_global_model.pt", "SRV_best_FL_global_model.pt"
AFTER_FEDAVG = "workflow=[{args{key_metric=check}},{type=cross_site,args{key_metric=check}}]"

# A checksum of the weights that begins with the site's name.
SCORES = """
import zlib


def score(params):
    value = zlib.crc32(flare.get_site_name().encode())
    for name in sorted(params):
        value = zlib.crc32(np.asarray(params[name]).tobytes(), value)
    return {"check": float(value)}


def keep(params):
    import os
    from safetensors.torch import save_file
    save_file(params, os.path.join(flare.system_info()["site_dir"], "sent.safetensors"))
"""


def checking(body: str = "", first: str = "") -> str:
    """The sites of :func:`training_scripts.noisy`, which keep a copy of what they send last."""
    return noisy(f"keep(params)\n{body}", scores=SCORES, first=first)


def check(site: str, model: Path) -> float:
    """What a site of :func:`checking` finds of a model's file."""
    params, value = load_file(model), zlib.crc32(site.encode())
    for name in sorted(params):
        value = zlib.crc32(params[name].numpy().tobytes(), value)
    return float(value)


def matrix(run) -> dict:
    """What the run has written."""
    return json.loads((run.directory.path / "cross_site/cross_val_results.json").read_text())


def due(run, sites) -> dict:
    """What it should have written, going by the files of the models."""
    directory = run.directory
    files = {FINAL: directory.final_model, BEST: directory.best_model}
    files |= {owner: directory.last_model(owner) for owner in sites}
    return {
        site: {owner: {"check": check(site, path)} for owner, path in files.items()}
        for site in sites
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory, jobs_in):
    return jobs_in(tmp_path_factory.mktemp("whole")).run(checking(), THREE, AFTER_FEDAVG).finished()


def test_each_entry_is_what_the_sites_own_code_finds_of_that_checkpoint(whole):
    found = matrix(whole)
    assert found == due(whole, SITES)
    assert [list(row) for row in found.values()] == [[FINAL, BEST, *SITES]] * 3
    for site in SITES:
        last = whole.directory.last_model(site)
        assert check(site, last) == check(site, last.with_name("sent.safetensors"))
        assert whole.directory.site_model(site).samefile(last)
    # A checksum is another one for each model and site.
    values = {entry["check"] for row in found.values() for entry in row.values()}
    assert len(values) == 3 * (4 if found["site-1"][FINAL] == found["site-1"][BEST] else 5)


def test_what_it_does_is_numbered_and_told_with_the_score_of_each_site(whole):
    rounds = ["fold", "evaluate"] * 2
    scores = ["collect", *["score"] * 5, "write_json"]
    assert shape(records(whole)) == numbered(*rounds, *scores)
    [collected] = of_kind(whole, ModelsCollected)
    assert (collected.sites, collected.failures) == (SITES, {})
    scored = of_kind(whole, ModelScored)
    assert [each.owner for each in scored] == [FINAL, BEST, *SITES]
    assert all(each.sites == 3 and each.metrics.keys() == {"check"} for each in scored)
    assert whole.summary.rounds_completed == 2
    for row in whole.summary.metrics:
        model = whole.directory.checkpoint(row["round"])
        assert row["sites"] == {site: {"check": check(site, model)} for site in SITES}


DIFFERENCE = """
if site == "site-1":
    params = {name: tensor + 1 - tensor for name, tensor in params.items()}
    flare.send(flare.FLModel(params=params, params_type="DIFF", metrics=metrics))
    continue
if site == "site-2":
    params = {"w": params["w"]}
    flare.send(flare.FLModel(params=params, meta={"partial": True}, metrics=metrics))
    continue
if (site, number) == ("site-3", 2):
    params["w"][5] = float("nan")
"""


def test_models_of_sites_are_what_they_made_whole_or_not_and_some_sites_may_take_part(jobs):
    chosen = ["site-3", "site-1", "site-2"]
    sites = f"workflow[1].args.participating_sites=[{','.join(chosen)}]"
    how = ["clients.count=4", "rounds=2", "clients.min_updates=2", AFTER_FEDAVG, sites]
    run = jobs.run(checking(DIFFERENCE), *how).finished()
    assert matrix(run) == due(run, chosen)
    assert list(matrix(run)) == chosen
    base = load_file(run.directory.checkpoint(1))
    one, two, three = (load_file(run.directory.last_model(site)) for site in SITES)
    assert torch.equal(one["steps"], base["steps"] + 1)
    assert torch.allclose(one["w"], base["w"] + 1)
    sent = load_file(run.directory.site("site-2") / "sent.safetensors")
    assert torch.equal(two["w"], sent["w"])
    assert torch.equal(two["b"], base["b"])
    # What is not finite has no part in the fold and is not collected: the site keeps its model.
    assert torch.isfinite(three["w"]).all()


def test_a_model_of_a_site_that_is_not_as_it_was_is_refused_with_a_sentence(flows, whole):
    flows.write("""
    from flstream.workflows import WorkflowArgs, workflow

    @workflow("broken", WorkflowArgs)
    def broken(run, args):
        break_off()
        return run.initial_model()
    """)
    jobs, args = flows.jobs, "args{key_metric=check}"
    types = ("fedavg", '"flow.py:broken"', "cross_site")
    stages = ",".join(f"{{type={each},{args}}}" for each in types)
    how = [THREE, f"workflow=[{stages}]"]
    (jobs.folder / "break-at").write_text("here")
    run = jobs.run(checking(), *how)
    path = run.directory.last_model("site-1")
    sound = path.read_bytes()
    flip(path)
    needed = f"a file that is needed again cannot be used: {path} has"
    with pytest.raises(UsageError, match=needed):
        jobs.go_on(run, checking(), *how)
    path.write_bytes(sound)
    assert matrix(jobs.go_on(run, checking(), *how).finished()) == matrix(whole)


SUBMIT = """
if flare.is_submit_model():
    assert model.params == {} and flare.get_task_name() == "submit_model"
    assert model.meta["submit_model_name"] == "best_model"
    if site == "site-2":
        raise RuntimeError("no best model")
    own = {"w": torch.full((300_000,), float(site[-1])), "b": torch.zeros(3, 5).double()}
    flare.send(flare.FLModel(params={**own, "steps": torch.tensor(7)}))
    continue
"""


def test_code_that_names_the_task_submits_a_model_of_its_own(jobs):
    run = jobs.run(checking(first=SUBMIT), THREE, "rounds=1", AFTER_FEDAVG, LARGE).finished()
    [collected] = of_kind(run, ModelsCollected)
    assert collected.sites == ["site-1", "site-3"]
    assert "no best model" in collected.failures["site-2"]
    found = matrix(run)
    for owner in ("site-1", "site-3"):
        model = run.directory.site_model(owner)
        tensors = load_file(model)
        assert torch.all(tensors["w"] == float(owner[-1]))
        assert tensors["steps"] == 7
        asked = [site for site in SITES if owner in found[site]]
        assert {"site-1", "site-3"} <= set(asked)
        assert all(found[site][owner] == {"check": check(site, model)} for site in asked)
    assert all("site-2" not in row for row in found.values())


LATE = """
if flare.is_evaluate():
    assert model.meta["model_owner"] and model.meta["validate_type"] == "model_validate"
    if site == "site-3" and model.meta["model_owner"] == "site-1":
        threading.Event().wait()
    if site == "site-2" and model.meta["model_owner"] == "site-1":
        flare.send(flare.FLModel())
        continue
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("processes")
def test_a_site_that_is_late_or_answers_nothing_is_left_out_and_the_others_count(jobs):
    workflow = "workflow=[{args{evaluate_every=0}},{type=cross_site,args{eval_task_timeout=1 s}}]"
    how = [THREE, "rounds=1", workflow, "clients.suspend_after=0"]
    run = jobs.run(checking(first=LATE), *how).finished()
    found = matrix(run)
    assert list(found["site-1"]) == [FINAL, *SITES]  # nothing says which is the best
    assert [site for site, row in found.items() if "site-1" not in row] == ["site-2", "site-3"]
    reasons = {each.site: each.reason for each in run.summary.failures}
    assert "without metrics" in reasons["site-2"]
    assert "in the time it was given" in reasons["site-3"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("participating_sites=[site-9]", "must be a site of the job"),
        ("participating_sites=[site-1,site-1]", "site-1 is in it twice"),
    ],
)
def test_mistakes_are_found_when_the_job_is_loaded(jobs, args, message):
    with pytest.raises(UsageError, match=message):
        jobs.make(checking(), f"workflow={{type=cross_site,args{{{args}}}}}")


def test_one_model_is_scored_without_any_training(jobs, whole):
    initial = f"model.initial={whole.directory.final_model}"
    workflow = "workflow={type=evaluate,args{key_metric=check}}"
    run = jobs.run(checking(), THREE, initial, workflow).finished()
    assert matrix(run) == {site: {FINAL: matrix(whole)[site][FINAL]} for site in SITES}
    assert run.summary.model.digest == whole.summary.model.digest
    assert run.summary.rounds_completed == 0
    assert (run.summary.best.round, len(run.summary.metrics)) == (0, 1)
    assert plan_resume(load_job(run.directory.job_file), run.directory).is_finished


OWN = """
from typing import ClassVar

from flstream.workflows import WorkflowArgs, workflow


class Args(WorkflowArgs):
    collects_models: ClassVar[bool] = True


@workflow("flow", Args)
def flow(run, args):
    model = run.initial_model()
    for number in run.rounds():
        before = run.collect("submit_model", run.sites)
        see(number, sorted(before), before.failures.keys())
        model = run.fold(model, run.train(model, ["site-1"]))
        now = run.collect("submit_model", run.sites)
        scores = run.score(now["site-1"], ["site-2"])
        see(list(scores), scores["site-2"]["check"] > 0)
    refused(run, MISTAKES, before=before, now=now)
    run.write_json("own/x.json", [float("nan")])
    return model
"""
MISTAKES = {
    "run.score(before['site-1'], ['site-2'])": "has collected another one",
    "run.score(now, ['site-2'])": "was given a SiteModels; give it what",
    "run.score(now['site-1'], run.sites, counts=True)": "the model of a site with counts",
}


def test_a_workflow_of_ones_own_collects_and_scores(flows):
    run = flows.finish(OWN.replace("MISTAKES", str(list(MISTAKES))), script=checking())
    *seen, first, second, third = flows.seen()
    assert seen == [
        "1, [], dict_keys(['site-1', 'site-2'])",
        "['site-2'], True",
        "2, ['site-1'], dict_keys(['site-2'])",
        "['site-2'], True",
    ]
    for line, sentence in zip((first, second, third), MISTAKES.values(), strict=True):
        assert sentence in line
    assert (run.directory.path / "own/x.json").read_text() == "[\n  null\n]\n"
    assert not run.directory.last_model("site-2").exists()
