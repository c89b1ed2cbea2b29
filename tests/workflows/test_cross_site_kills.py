"""All processes of a run with cross-site evaluation are killed; it goes on to the same scores."""

import os
import shutil

import pytest
from cross_sites import checking, due, matrix
from flows import Flows, finished, records, shape
from nightly_cases import first_and_nightly
from training_scripts import LARGE, results

# Both stages, which die after a chosen call of what carries them out.
DIES = """
from flstream.server.effects import EffectJournal
from flstream.server.last_models import FoldKeeper
from flstream.aggregation.partial_sum import PartialSum
from flstream.runs.run_directory import RunDirectory
from flstream.workflows import workflow
from flstream.workflows.cross_site import CrossSiteArgs, cross_site
from flstream.workflows.fedavg import FedAvgArgs, fedavg

counts = {}


@workflow("first", FedAvgArgs)
def first(run, args):
    after(EffectJournal, "record", lambda args: f"{args[1].round} {args[1].name}")
    after(FoldKeeper, "keep", lambda args: f"kept {len(args[0].digests)}")
    after(PartialSum, "add", lambda args: "added to a sum")
    after(RunDirectory, "publish", lambda args: args[2].name)
    after(RunDirectory, "write", lambda args: args[1].name)
    return fedavg(run, args)


@workflow("flow", CrossSiteArgs)
def flow(run, args):
    return cross_site(run, args)


def after(owner, method, place):
    do = getattr(owner, method)

    def patched(*args, **kwargs):
        result = do(*args, **kwargs)
        name = place(args)
        counts[name] = counts.get(name, 0) + 1
        die_here(name, everything=True)
        die_here(f"{name} #{counts[name]}", everything=True)
        return result

    setattr(owner, method, patched)
"""
STAGES = 'workflow=[{type="flow.py:first",args{key_metric=check}},{type="flow.py:flow"}]'
HOW = {
    "own": ["clients.count=3"],
    "shared": ["clients.count=6", "clients.parallel=1", LARGE],
}
KINDS = ["train", "fold", "evaluate"] * 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """What comes of it where nobody disturbs it."""
    found = {}

    def of(how):
        if how not in found:
            flows = Flows(jobs_in(tmp_path_factory.mktemp(how)))
            flows.write(DIES)
            run = finished(flows.jobs.run(checking(), STAGES, *HOW[how]))
            assert matrix(run) == due(run, sites_of(how))
            found[how] = results(run), matrix(run)
        return found[how]

    return of


def sites_of(how):
    return [f"site-{number}" for number in range(1, 4 if how == "own" else 7)]


def killed(flows, how, place):
    """A run of which all processes were killed at a place."""
    flows.write(DIES)
    more = [*HOW[how]]
    return flows.killed_whole(DIES, STAGES, *more, place=place, script=checking())


@pytest.mark.nightly
@first_and_nightly(
    ("how", "place"),
    [
        ("own", "2 score #3"),
        ("shared", "kept 3 #2"),
        ("own", "kept 2 #2"),
        ("own", "2 fold"),
        ("own", "site-2.safetensors"),
        ("own", "cross_val_results.json"),
        ("shared", "added to a sum"),
    ],
    brief=1,
)
def test_a_killed_run_goes_on_to_the_same_scores(flows, undisturbed, how, place):
    expected = undisturbed(how)
    folder = killed(flows, how, place)
    run = flows.jobs.go_on(folder, checking(), STAGES, *HOW[how])
    assert (results(finished(run)), matrix(run)) == expected
    assert not (run.directory.path / "updates").exists()
    assert list(run.directory.path.rglob("*.tmp")) == []
    scores = len(sites_of(how)) + 2
    kinds = [*KINDS, "collect", *["score"] * scores, "write_json"]
    assert sorted(set(shape(records(run)))) == sorted(
        f"{place} {kind}" for place, kind in enumerate(kinds, 1)
    )


@pytest.mark.nightly
@first_and_nightly("flaw", ["damaged", "gone"])
def test_a_model_of_a_site_that_is_not_as_it_was_is_made_again(flows, undisturbed, flaw):
    expected = undisturbed("own")
    folder = killed(flows, "own", "2 collect")
    path = folder / "sites/site-1/last.safetensors"
    if flaw == "gone":
        shutil.rmtree(folder / "cross_site")
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\1\2\3\4")
    run = flows.jobs.go_on(folder, checking(), STAGES, *HOW["own"])
    assert (results(finished(run)), matrix(run)) == expected
    assert any("the run went back" in each for each in run.summary.warnings)


@pytest.mark.nightly
def test_only_the_collected_models_are_gone_and_are_collected_again(flows, undisturbed):
    expected = undisturbed("own")
    folder = killed(flows, "own", "2 score #3")
    shutil.rmtree(folder / "cross_site")
    run = flows.jobs.go_on(folder, checking(), STAGES, *HOW["own"])
    assert (results(finished(run)), matrix(run)) == expected
    assert [each.name for each in records(run)].count("fold") == 2


@pytest.mark.nightly
def test_a_model_that_was_refused_is_not_collected(flows):
    """A site that sends what is not finite has no part in the fold, and keeps its model."""
    script = checking('if (site, number) == ("site-2", 2):\n    params["w"][5] = float("nan")')
    flows.write(DIES)
    run = finished(flows.jobs.run(script, STAGES, *HOW["own"], "clients.min_updates=2"))
    first = flows.jobs.run(script, STAGES, *HOW["own"], "rounds=1")
    last = [each.directory.last_model("site-2").read_bytes() for each in (run, first)]
    assert last[0][-4000:] == last[1][-4000:]
    assert matrix(run) == due(run, sites_of("own"))
