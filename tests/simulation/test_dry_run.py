"""What a workflow does in its first round, found out without doing it."""

import inspect
from pathlib import Path

import pytest
from run_fixtures import shared_host_for

from flstream.errors import UsageError
from flstream.job import JobError, load_job
from flstream.model.layout import Layout
from flstream.server.run import Run
from flstream.simulation import dry_run as module
from flstream.simulation.dry_run import outline_of, outline_programs
from flstream.simulation.forecast import forecast, plain_layout
from flstream.workflows.registry import BUILT_IN

PRIVATE = ("privacy.type=central", "privacy.noise_multiplier=1", "clients.per_round=2")
DIGITS = Path(__file__).parents[2] / "jobs" / "digits" / "job.conf"


def outlines(*overrides):
    job = load_job(DIGITS, ["clients.count=4", *overrides])
    return [outline_of(job, place) for place in range(len(job.stages))]


def test_each_workflow_that_comes_with_flstream_is_here():
    assert {kind.partition(",")[0] for kind in DUE} == set(BUILT_IN)


SCORES = "write cross_site/cross_val_results.json"
DUE = {
    "fedavg": "train 4 sites, fold, evaluate",
    "fedavg, args{evaluate=received}": "train 4 sites, fold",
    "fedavg, args{evaluate_every=5}": "train 4 sites, fold, evaluate each 5 rounds",
    "scaffold": "train 4 sites, fold, evaluate",
    "fedex": "train 4 sites, fold, evaluate",
    "hlora": "train 4 sites, fold, evaluate",
    "flora": "train 4 sites, fold, evaluate",
    "feddyn": "train 4 sites, fold, evaluate",
    "diloco": "train 4 sites, fold, evaluate",
    "diloco, args{overlap=1}": "4 x start, 4 x next, 4 x start, fold, evaluate",
    "fedbuff, args{buffer_size=2, concurrency=2}": "2 x start, next, start, next, fold, evaluate",
    "fedasync, args{concurrency=2}": "2 x start, next, fold, evaluate",
    "decoupled_diloco": "4 x start, 4 x next, fold, evaluate",
    "ditto": "train 4 sites, fold, evaluate",
    'fedper, args{personal=["^layers.7"]}': "train 4 sites, fold, evaluate",
    "swarm": "train 4 sites, fold at a site, evaluate",
    "cyclic, args{order=random}": "4 x (train 1 site, adopt), evaluate",
    "cross_site": f"collect from 4 sites, 5 x score at 4 sites, {SCORES}",
    "evaluate": f"score at 4 sites, {SCORES}",
}


@pytest.mark.parametrize("kind", DUE)
def test_a_workflow_is_outlined_by_its_program(kind):
    [outline] = outlines(f"workflow={{type={kind}}}")
    name = kind.partition(",")[0]
    assert str(outline) == f"{name}: {DUE[kind]}"


def test_only_those_are_counted_that_a_round_asks_and_each_workflow_of_a_list_has_an_outline():
    first, second = outlines("clients.per_round=2", "workflow=[{type=fedavg}, {type=cross_site}]")
    assert (first.trained, first.scored, first.collected) == (2, 0, 0)
    assert (second.trained, second.scored, second.collected) == (0, 5 * 4, 4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["workflow.type=feddyn", "aggregation.method=median"], "leave out aggregation.method"),
        (["workflow.type=feddyn", "server_optimizer.type=fedadam"], "leave out server_optimizer"),
        (["workflow.type=scaffold", "aggregation.method=median"], "which are sums, and aggregatio"),
        (["workflow.type=scaffold", "filters.up=[percentile_privacy]"], "leave out filters"),
        (
            ["workflow.type=scaffold", "streaming.codecs.down=[int8]"],
            "leave out streaming.codecs",
        ),
        (
            ["workflow.type=swarm", "clients.parallel=2", "network.up=1 Mbit"],
            "set clients.parallel = 4",
        ),
        ([*PRIVATE, "workflow.type=feddyn"], "leave out privacy.type"),
        ([*PRIVATE, "workflow=[{}, {type=cyclic}]"], "workflow[1].type: cyclic: run.adopt() makes"),
        ([*PRIVATE, "workflow=[{}, {type=cross_site}]"], "run.collect() takes models of single s"),
    ],
)
def test_a_key_that_rules_out_what_a_workflow_does_is_refused_before_it_begins(settings, sentence):
    job = load_job(DIGITS, ["clients.count=4", *settings])
    with pytest.raises(JobError) as refused:
        outline_programs(job)
    assert sentence in str(refused.value)
    assert "workflow" in refused.value.problems[0].key


EVERYTHING = """
from flstream.workflows import FoldRule

def everything(run, args):
    run.limit_waiting(start=1.0)
    model = run.initial_model(control="zeros")
    assert (run.best, run.best_model, run.ended_early) == (None, None, None)
    for number in run.rounds():
        assert run.all_sites == run.sites == run.idle
        assert len(run.partition(3)) == run.min_updates - 1 == run.cohort_size - 1 == 3
        updates = run.train(model, run.sample(number), meta={"a": 1})
        assert [each.site for each in updates] == updates.sites and not updates.failures
        loss = sum(each.metrics["loss"] for each in updates)
        model = run.fold(model, updates, control=FoldRule(weights=1.0))
        for site in run.order(number, "random"):
            run.start(site, model)
        while run.in_flight:
            answer = run.next(max_wait=60)
            assert answer.ok and answer.base is model
        model = run.adopt([answer])
        if run.evaluate(model, meta={"a": 1})["accuracy"] > 0.5 or run.random("x").random() > 2:
            raise RuntimeError
        for site in run.collect("submit_model", run.sites).values():
            run.score(site, run.sites, owner=site.site)
        run.write_json("out/x.json", loss)
        run.log("loss", loss)
        answers = run.ask(model, {site: {"a": site} for site in run.sites})
        assert all(each.has_tensors for each in answers) and run.remember("x", bytes) == b""
        model = run.store(model, "a file")
        run.report(model, {"loss": loss})
        for nothing in (
            lambda: run.path_of(model), lambda: run.start_process("x", None, "x:x"),
            lambda: run.save(answers[0], "a file"),
        ):
            try:
                nothing()
            except Exception as error:
                continue
            raise RuntimeError("a dry run has no files, and starts no process")
    return model

def merges(run, args):
    model = run.initial_model(residual=lambda shapes: {"r": [1]})
    for number in run.rounds():
        model = run.merge(run.fold(model, run.train(model, run.sites)))
    return model

def folds(run, see=lambda updates: updates):
    model = run.initial_model()
    for number in run.rounds():
        model = run.fold(model, see(run.train(model, run.sites)))

def lists(run):
    return folds(run, list)

def reads(run):
    model = run.initial_model()
    for number in run.rounds():
        updates = run.train(model, run.sites)
        model = run.adopt([max(updates, key=lambda each: each.meta["last"])])

def mistaken(run):
    for number in run.rounds():
        run.fold("model", [])

def leaves(run):
    for number in run.rounds():
        run.train(run.initial_model(), run.sites)

def misnamed(run):
    model = run.initial_model()
    for number in run.rounds():
        steps = [each.meta["NUM_STEPS_CURRENT_ROUND"] for each in run.train(model, run.sites)]
        model = run.folds(model, steps)

def unknown(run):
    return updates

def ends(run):
    import os
    os._exit(7)

def swallows(run):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

def asks_on(run):
    model = run.initial_model()
    for number in run.rounds():
        while True:
            model = run.fold(model, run.train(model, run.sites))
"""


@pytest.fixture
def own(tmp_path):
    def outline(name):
        (tmp_path / "flow.py").write_text(EVERYTHING)
        [found] = outlines(f'workflow.type="{tmp_path}/flow.py:{name}"')
        return found

    return outline


def test_whatever_a_run_offers_can_be_asked_of_a_dry_one(own):
    found = own("everything")
    assert found.flaw == ""
    assert str(found).endswith(
        "train 4 sites, fold, 4 x start, 4 x next, adopt, evaluate, collect from 4 sites, "
        "4 x score at 4 sites, write out/x.json, train 4 sites, store, report"
    )
    offered = {name for name, _ in inspect.getmembers(Run) if not name.startswith("_")}
    offered.add("ended_early")
    assert {name for name in offered if f"run.{name}" not in EVERYTHING} == set()
    merging = own("merges")
    assert (merging.flaw, merging.merges, found.merges) == ("", True, False)


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("reads", "raised KeyError: 'last'"),
        ("mistaken", "run.fold() was given a str as its model"),
        ("leaves", "of the workflow, was neither read nor folded"),
        ("asks_on", "its first round has more than 10,000 effects"),
    ],
)
def test_a_program_that_cannot_be_run_dry_is_said_to_be_taken_for_another(own, name, flaw):
    found = own(name)
    assert flaw in found.flaw
    assert f":{name}, taken for one that trains, folds and evaluates: a dry" in str(found)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unknown", r"flow.py, line \d+ raised NameError: name 'updates' is not defined"),
        ("misnamed", r"line \d+ raised AttributeError: .* 'folds'; did you mean fold\?"),
    ],
)
def test_a_name_that_nobody_has_defined_is_a_mistake_of_the_job(tmp_path, name, words):
    (tmp_path / "flow.py").write_text(EVERYTHING)
    job = load_job(DIGITS, [f'workflow.type="{tmp_path}/flow.py:{name}"'])
    with pytest.raises(JobError, match=words) as refused:
        outline_programs(job, shared_host_for(job))
    assert [problem.key for problem in refused.value.problems] == ["workflow.type"]


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("lists", ""),
        ("ends", "its process exited with status 7"),
        ("swallows", "it went on for more than 2 s"),
    ],
)
def test_a_program_may_end_its_process_or_go_on_for_ever(
    tmp_path, monkeypatch, fork_server, name, flaw
):
    monkeypatch.setattr(module, "_SECONDS", 2.0 if name == "swallows" else 20.0)
    (tmp_path / "flow.py").write_text(EVERYTHING)
    job = load_job(DIGITS, [f'workflow.type="{tmp_path}/flow.py:{name}"'])
    [outline] = outline_programs(job, shared_host_for(job))
    assert outline.flaw == flaw


def test_the_forecast_counts_the_sites_that_a_round_asks():
    layout, size = plain_layout(1 << 20), 1 << 20
    for settings, down, up in (
        (["clients.per_round=2"], 2, 2),
        (["workflow.type=cyclic"], 4, 4),
        (["workflow.type=cross_site"], 20, 4),
        (["workflow.type=evaluate"], 4, 0),
    ):
        job = load_job(DIGITS, ["clients.count=4", *settings])
        need = forecast(job, layout, programs=[outline_of(job)])
        assert (need.down_bytes, need.up_bytes) == (down * size, up * size)


def test_updates_that_are_read_count_as_files_on_the_disk(own):
    layout = plain_layout(64 << 20)
    job = load_job(DIGITS, ["clients.count=4"])
    needs = [forecast(job, layout, programs=[own(name)]) for name in ("folds", "lists")]
    unread, read = (need.disk_bytes for need in needs)
    assert read - unread == 4 * layout.nbytes


def test_a_residual_goes_to_sites_and_not_back_and_a_model_without_adapters_has_none():
    shapes = {"fc.lora_A.weight": (2, 90), "fc.lora_B.weight": (50, 2)}
    layout = Layout.of((name, "F32", shape) for name, shape in shapes.items())
    job = load_job(DIGITS, ["clients.count=4", "workflow.type=fedex"])
    programs = outline_programs(job)
    need = forecast(job, layout, programs=programs)
    residual = 4 * (4 * 2) * (90 + 50)
    assert need.up_bytes == 4 * layout.nbytes
    assert need.down_bytes == 4 * (layout.nbytes + residual)
    with pytest.raises(UsageError, match=r"workflow.type: the model has no LoRA pair"):
        forecast(job, plain_layout(1 << 10), programs=programs)


POLICY, SAMPLER = (
    "stragglers={policy=percentage, percent_collaborators_needed=0.5}",
    "clients.sampler=round_robin",
)
FEDBUFF = "{type=fedbuff, args{buffer_size=2, concurrency=2}}"


@pytest.mark.parametrize(
    ("workflow", "unused"),
    [
        (FEDBUFF, ["stragglers.policy", "clients.sampler.type"]),
        ("{type=diloco, args{overlap=1}}", ["stragglers.policy"]),
        (f"[{{}}, {FEDBUFF}]", []),
        ("{}", []),
    ],
)
def test_keys_on_a_rounds_sites_that_no_workflow_would_use_are_refused(workflow, unused):
    settings = ["clients.count=4", "clients.per_round=2", POLICY, SAMPLER, f"workflow={workflow}"]
    job = load_job(DIGITS, settings)
    if not unused:
        outline_programs(job)
        return
    with pytest.raises(JobError) as refused:
        outline_programs(job)
    assert [problem.key for problem in refused.value.problems] == unused
