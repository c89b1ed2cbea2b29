"""Every site scores every model: the global ones, and the last of each site."""

import pytest
import torch
from cross_sites import AFTER_FEDAVG, BEST, FINAL, check, checking, due, matrix
from flows import records, shape
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import LARGE, LEARNER, noisy_learner, of_kind

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.runs.body_records import RECORDED, read_bodies
from flstream.runs.journal import read_history
from flstream.runs.resume import plan_resume
from flstream.telemetry.events import Evaluated, ModelsCollected, ModelScored

SITES = ["site-1", "site-2", "site-3"]
THREE = "clients.count=3"


def models_of(run, sites=SITES):
    """The tensors of each site's last model."""
    return {site: load_file(run.directory.last_model(site)) for site in sites}


def alike(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, jobs_in):
    """A run in which each site has a process of its own."""
    jobs = jobs_in(tmp_path_factory.mktemp("whole"))
    run = jobs.run(checking(), THREE, AFTER_FEDAVG)
    assert run.summary.status == "finished", run.summary.error
    return run


def test_each_entry_is_what_the_sites_own_code_finds_of_that_checkpoint(whole):
    found = matrix(whole)
    assert found == due(whole, SITES)
    assert [list(row) for row in found.values()] == [[FINAL, BEST, *SITES]] * 3
    for site, model in models_of(whole).items():
        assert alike(model, load_file(whole.directory.site(site) / "sent.safetensors"))
        assert whole.directory.site_model(site).samefile(whole.directory.last_model(site))
    # A checksum is another one for each model and site.
    values = {entry["check"] for row in found.values() for entry in row.values()}
    assert len(values) == 3 * (4 if found["site-1"][FINAL] == found["site-1"][BEST] else 5)


def test_what_it_does_is_numbered_and_told(whole):
    rounds = ["train", "fold", "evaluate"] * 2
    scores = ["collect", *["score"] * 5, "write_json"]
    kinds = [*rounds, *scores]
    assert shape(records(whole)) == [f"{place} {kind}" for place, kind in enumerate(kinds, 1)]
    [collected] = of_kind(whole, ModelsCollected)
    assert (collected.sites, collected.failures) == (SITES, {})
    scored = of_kind(whole, ModelScored)
    assert [each.owner for each in scored] == [FINAL, BEST, *SITES]
    assert all(each.sites == 3 and each.metrics.keys() == {"check"} for each in scored)
    evaluations = sum((each.down for each in of_kind(whole, Evaluated)), start=scored[0].down)
    assert whole.summary.rounds_completed == 2
    assert whole.summary.transfer.down.bytes > evaluations.bytes


def test_an_evaluation_keeps_the_score_of_each_site(whole):
    for row in whole.summary.metrics:
        model = whole.directory.checkpoint(row["round"])
        assert row["sites"] == {site: {"check": check(site, model)} for site in SITES}
    first = of_kind(whole, Evaluated)[0]
    assert first.sites == {"check": [check(site, whole.directory.checkpoint(1)) for site in SITES]}


def test_a_finished_run_has_nothing_left_to_do(whole):
    job = load_job(whole.directory.job_file)
    assert [stage.type for stage in job.stages] == ["fedavg", "cross_site"]
    assert job.planned_rounds == 2
    assert job.key_metric == "check"
    assert plan_resume(job, whole.directory).is_finished


@first_and_nightly(
    "how",
    [
        ["clients.parallel=1"],
        ["clients.parallel=2", "streaming.tensor_download_chunk_size=4 KiB"],
        ["streaming.mode=push", "streaming.tensor_download_chunk_size=4 KiB"],
    ],
    ids=lambda how: " ".join(how).replace("streaming.tensor_download_", ""),
)
def test_scores_depend_on_neither_workers_nor_chunks(whole, jobs, how):
    run = jobs.run(checking(), THREE, AFTER_FEDAVG, *how)
    assert run.summary.status == "finished", run.summary.error
    assert matrix(run) == matrix(whole)
    assert run.summary.metrics == whole.summary.metrics


def test_no_model_stays_longer_for_the_sake_of_a_later_workflow(jobs):
    how = "clients.parallel=2", "checkpoints.keep=1", "rounds=3"
    run = jobs.run(checking(), "clients.count=3", *how, AFTER_FEDAVG)
    assert run.summary.status == "finished", run.summary.error
    kept = {f"round-{number:04d}.safetensors" for number in (run.summary.best.round, 3)}
    assert {path.name for path in run.directory.checkpoints.iterdir()} == kept


def test_models_of_updates_that_are_added_up_as_they_come_are_kept(jobs):
    sites = [f"site-{number}" for number in range(1, 7)]
    run = jobs.run(
        checking(), "clients.count=6", "clients.parallel=1", "rounds=1", AFTER_FEDAVG, LARGE
    )
    assert matrix(run) == due(run, sites)
    for site, model in models_of(run, sites).items():
        assert alike(model, load_file(run.directory.site(site) / "sent.safetensors"))
    assert not (run.directory.path / "updates").exists()


DIFFERENCE = """
if site == "site-1":
    params = {name: tensor + 1 - tensor for name, tensor in params.items()}
    flare.send(flare.FLModel(params=params, params_type="DIFF", metrics=metrics))
    continue
if site == "site-2":
    params = {"w": params["w"]}
    flare.send(flare.FLModel(params=params, meta={"partial": True}, metrics=metrics))
    continue
"""


def test_a_difference_and_a_part_are_made_full(jobs):
    run = jobs.run(checking(DIFFERENCE), THREE, "rounds=1", AFTER_FEDAVG)
    assert matrix(run) == due(run, SITES)
    base, models = load_file(run.directory.checkpoint(0)), models_of(run)
    sent = {site: load_file(run.directory.site(site) / "sent.safetensors") for site in SITES}
    assert torch.equal(models["site-1"]["steps"], base["steps"] + 1)
    assert torch.allclose(models["site-1"]["w"], base["w"] + 1)
    assert torch.equal(models["site-2"]["w"], sent["site-2"]["w"])
    assert torch.equal(models["site-2"]["b"], base["b"])
    assert alike(models["site-3"], sent["site-3"])


def test_a_job_without_it_keeps_no_models_of_sites(jobs):
    run = jobs.run(checking(), THREE, "rounds=1", "workflow.args.key_metric=check")
    assert run.summary.status == "finished", run.summary.error
    assert list(run.directory.sites.rglob("last*")) == []
    assert not (run.directory.path / "cross_site").exists()


SUBMIT = """
if flare.is_submit_model():
    assert model.params == {} and flare.get_task_name() == "submit_model"
    assert model.meta["submit_model_name"] == "best_model"
    if site == "site-2":
        raise RuntimeError("no best model")
    own = {"w": torch.full((len_w,), float(site[-1])), "b": torch.zeros(3, 5).double()}
    flare.send(flare.FLModel(params={**own, "steps": torch.tensor(7)}))
    continue
"""


def submitting(elements=1000):
    lines = "".join(f"    {line}\n" for line in SUBMIT.splitlines() if line)
    text = checking().replace(
        "    if flare.is_evaluate():\n", f"{lines}    if flare.is_evaluate():\n"
    )
    return f"len_w = {elements}\n{text}"


@pytest.mark.parametrize(
    "how", [[], ["clients.parallel=2"], ["clients.parallel=2", LARGE]], ids=["own", "tiny", "files"]
)
def test_code_that_names_the_task_submits_a_model_of_its_own(jobs, how):
    elements = 300_000 if LARGE in how else 1000
    run = jobs.run(submitting(elements), THREE, "rounds=1", AFTER_FEDAVG, *how)
    assert run.summary.status == "finished", run.summary.error
    [collected] = of_kind(run, ModelsCollected)
    assert collected.sites == ["site-1", "site-3"]
    assert "no best model" in collected.failures["site-2"]
    assert list(run.directory.sites.rglob("last*")) == []
    assert not (run.directory.path / "updates").exists()
    found = matrix(run)
    asked = ["site-1", "site-3"] if how == [] else SITES  # its own process has ended
    for owner in ("site-1", "site-3"):
        model = run.directory.site_model(owner)
        tensors = load_file(model)
        assert torch.all(tensors["w"] == float(owner[-1]))
        assert tensors["steps"] == 7
        assert all(found[site][owner] == {"check": check(site, model)} for site in asked)
    assert all("site-2" not in row for row in found.values())
    journal = run.directory.events
    records = list(read_bodies(journal, read_history(journal, note_lines_of=RECORDED)))
    submitted = [each for each in records if each.task == "submit_model"]
    assert {each.site for each in submitted} == {"site-1", "site-3"}
    assert all(each.direction == "sent" and each.tags == ("pulled", "FULL") for each in submitted)
    assert all(each.bytes == each.size == run.summary.model.bytes for each in submitted)


LATE = """
if flare.get_site_name() == "site-3" and model.meta.get("model_owner") == "site-1":
    import threading
    threading.Event().wait()
if flare.get_site_name() == "site-2" and model.meta.get("model_owner") == "site-1":
    flare.send(flare.FLModel())
    continue
assert model.meta["model_owner"] and model.meta["validate_type"] == "model_validate"
"""


@pytest.mark.nightly
def test_a_site_that_is_late_or_answers_nothing_is_left_out_and_the_others_count(jobs):
    workflow = AFTER_FEDAVG.replace("key_metric=check", "eval_task_timeout=1 s, evaluate_every=0")
    run = jobs.run(checking(evaluation=LATE), THREE, "rounds=1", workflow, "clients.bench_after=0")
    assert run.summary.status == "finished", run.summary.error
    found = matrix(run)
    assert list(found["site-1"]) == [FINAL, *SITES]  # nothing says which is the best
    missing = {site for site, row in found.items() if "site-1" not in row}
    assert missing == {"site-2", "site-3"}
    reasons = {each.site: each.reason for each in run.summary.failures}
    assert "without metrics" in reasons["site-2"]
    assert "in the time it was given" in reasons["site-3"]


RECEIVED = """
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics=score(params)))
        continue
"""


def test_code_that_trains_in_an_evaluation_is_scored_by_the_metrics_that_it_sends(jobs):
    script = checking().replace(RECEIVED, "\n    received = score(params)\n")
    script = script.replace("metrics=metrics", "metrics=received")
    run = jobs.run(script, THREE, AFTER_FEDAVG)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.evaluate == "received"
    found, expected = matrix(run), due(run, SITES)
    assert found == expected
    assert any("answers evaluation tasks with a model too" in each for each in run.summary.warnings)
    assert run.summary.metrics[0]["sites"] == {
        site: {"check": check(site, run.directory.checkpoint(0))} for site in SITES
    }


def test_some_sites_alone_may_take_part(jobs):
    two = AFTER_FEDAVG.replace("key", "participating_sites=[site-3,site-1],key")
    run = jobs.run(checking(), THREE, "rounds=1", two)
    assert matrix(run) == due(run, ["site-3", "site-1"])
    assert list(matrix(run)) == ["site-3", "site-1"]


@pytest.mark.parametrize(
    ("workflow", "message"),
    [
        ("{type=cross_site,args{participating_sites=[site-9]}}", "must be a site of the job"),
        ("{type=cross_site,args{participating_sites=[site-1,site-1]}}", "site-1 is in it twice"),
        ("{type=cross_site,args{after=fedavgg}}", "did you mean fedavg?"),
        ("{type=cross_site,args{after=evaluate}}", "must be one of fedavg"),
        ("{type=cross_site,args{eval_task_timeout=-1 s}}", "eval_task_timeout"),
        ("[{type=fedavg},{type=evaluate,args{checkpoint=model.py}}]", "checkpoint"),
    ],
)
def test_mistakes_are_found_when_the_job_is_loaded(jobs, workflow, message):
    with pytest.raises(UsageError, match=message.replace("?", r"\?").replace("[", r"\[")):
        jobs.make(checking(), f"workflow={workflow}")


def test_one_model_is_scored_without_any_training(jobs, tmp_path, whole):
    args = f"{{checkpoint={whole.directory.final_model},key_metric=check}}"
    run = jobs.run(
        checking(), THREE, f"workflow={{type=evaluate,args{args}}}", "clients.parallel=2"
    )
    assert run.summary.status == "finished", run.summary.error
    expected = {site: {FINAL: matrix(whole)[site][FINAL]} for site in SITES}
    assert matrix(run) == expected
    assert run.summary.model.digest == whole.summary.model.digest
    assert run.summary.rounds_completed == 0
    [row] = run.summary.metrics
    assert row["sites"] == {site: each[FINAL] for site, each in expected.items()}
    assert run.summary.best.round == 0
    assert run.summary.best.value == row["check"]
    job = load_job(run.directory.job_file)
    assert plan_resume(job, run.directory).is_finished
    assert job.model.initial == whole.directory.final_model


SUBMITTING_LEARNER = """
    def submit_model(self, model):
        assert model.params == {}
        number = float(self.site.name[-1])
        own = {"w": torch.full((1000,), number), "b": torch.zeros(3, 5).double()}
        return flare.FLModel(params={**own, "steps": torch.tensor(7)})
"""


def test_a_learner_with_the_method_submits_a_model(jobs):
    script = noisy_learner() + SUBMITTING_LEARNER
    how = [THREE, "rounds=1", "clients.parallel=1", *LEARNER]
    run = jobs.run(script, AFTER_FEDAVG.replace(",key_metric=check", ""), *how)
    assert run.summary.status == "finished", run.summary.error
    for row in matrix(run).values():
        assert [row[site]["accuracy"] for site in SITES] == [1.0, 2.0, 3.0]


def test_a_learner_without_it_sends_nothing_more_whatever_another_class_does(jobs):
    apart = SUBMITTING_LEARNER.replace("\n    def", "\n\nclass Another(Sites):\n    def", 1)
    how = [THREE, "rounds=1", "clients.parallel=1", *LEARNER]
    job = AFTER_FEDAVG.replace(",key_metric=check", "")
    run = jobs.run(noisy_learner() + apart, job, *how)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.failures == []
    inherited = jobs.make(noisy_learner() + apart, job, *how, "train.learner=client:Another")
    assert inherited.submits_models


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
    %s
    return model
"""


def test_a_workflow_of_ones_own_collects_and_scores(flows):
    run = flows.finish(OWN % "run.write_json('own/x.json', [float('nan')])", script=checking())
    assert flows.seen() == [
        "1, [], dict_keys(['site-1', 'site-2'])",
        "['site-2'], True",
        "2, ['site-1'], dict_keys(['site-2'])",
        "['site-2'], True",
    ]
    assert (run.directory.path / "own/x.json").read_text() == "[\n  null\n]\n"
    assert not run.directory.last_model("site-2").exists()


@first_and_nightly(
    ("line", "message"),
    [
        ("run.score(before['site-1'], ['site-2'])", "has collected another one"),
        ("run.score(now, ['site-2'])", "was given a SiteModels; give it what"),
        ("run.score(now['site-1'], run.sites, counts=True)", "the model of a site with counts"),
        ("run.collect('best', run.sites)", "what it collects is 'submit_model'"),
        ("run.score(model, ['site-9'])", "site-9"),
        ("run.write_json('../x.json', 1)", "give it one with a folder of its own"),
        ("run.write_json('sites/x.json', 1)", "give it one with a folder of its own"),
        ("run.write_json('own/x.json', {1, 2})", "was given what JSON cannot hold"),
        ("own = []; own.append(own); run.write_json('own/x.json', own)", "what JSON cannot hold"),
    ],
    brief=4,
)
def test_mistakes_of_a_workflow_are_sentences(flows, line, message):
    assert message in flows.fail(OWN % line, "clients.parallel=1", script=checking())
