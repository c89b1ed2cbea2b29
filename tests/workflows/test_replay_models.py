"""The files of models: their names, which of them stay, and how replay finds them."""

import pytest
from flows import models, records
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import LARGE, QUIET, adding, results

from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest

HOPS = """
def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        for site in run.sites:
            model = run.adopt(run.train(model, [site]))
            see(model, on_disk())
            die_here(f"{number} {site}")
        run.evaluate(model)
    return model


def on_disk():
    files = run_folder().glob("checkpoints/*.safetensors")
    return sorted(each.name.removesuffix(".safetensors") for each in files)
"""
THREE = ["clients.count=3", QUIET]


def name(number, step=None):
    return f"round-{number:04d}" + ("" if step is None else f".step-{step:02d}")


def test_a_rounds_newest_model_has_its_name_and_earlier_ones_that_of_their_step(flows):
    run = flows.finish(HOPS, *THREE, script=adding({}))
    first = [name(1), name(1, 0), name(1, 1)]
    assert models(run) == [
        f"{each}.safetensors" for each in [name(0), *first, name(2), name(2, 0), name(2, 1)]
    ]
    seen = flows.seen()
    assert seen[0].endswith(f", {[name(0), name(1)]}")
    assert seen[2].endswith(f", {[name(0), *first]}")
    made = [each.model for each in records(run) if each.model is not None]
    assert [(each.round, each.version, each.step) for each in made] == [
        (1, 1, 0), (1, 2, 1), (1, 3, 2), (2, 4, 0), (2, 5, 1), (2, 6, 2),
    ]  # fmt: skip
    for each in made:
        path = run.directory.model_file(each)
        assert body_digest(FileSource(path)) == each.digest
        # Each site has added its number: 1, 2 and 3.
        due = [0, 1, 3, 6, 7, 9, 12][each.version]
        assert load_file(path)["steps"].item() == due
    assert run.directory.final_model.samefile(run.directory.checkpoint(2))


@first_and_nightly("place", ["2 site-1", "1 site-1", "1 site-2", "1 site-3", "2 site-3"], brief=1)
@first_and_nightly("keep", ["all", "1"])
def test_replay_finds_models_by_their_digests(flows, place, keep):
    # A later model of the round has taken the name of the one that is looked for.
    how = [*THREE, f"checkpoints.keep={keep}"]
    expected = flows.finish(HOPS, *how)
    due = flows.seen()
    run = flows.killed(HOPS, *how, place=place)
    flows.seen()
    resumed = flows.resume(run, HOPS, *how)
    assert results(resumed) == results(expected)
    assert [line.split(", [")[0] for line in flows.seen()] == [line.split(", [")[0] for line in due]
    assert models(resumed) == models(expected)


def test_a_model_that_the_program_refers_to_stays_and_others_go(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        kept = None
        for number in run.rounds():
            model = run.fold(model, run.train(model, run.sites))
            run.evaluate(model)
            if number == 2:
                kept = model
            if number == 5:
                see(on_disk())
                model = run.fold(kept, run.train(kept, run.sites))
                kept = None
        return model
    """ + HOPS.partition("return model\n")[2].replace("\n", "\n    ")
    # Of no round is the best, so that none stays for that.
    script = adding({}).replace("float(number)", "float('nan')")
    run = flows.finish(text, "rounds=7", "checkpoints.keep=1", script=script)
    assert flows.seen() == [f"{[name(2), name(5)]}"]
    assert models(run) == ["round-0007.safetensors"]
    # From round 2 on: 5 and 6 were made of it and of what it became.
    steps = [load_file(run.directory.checkpoint(7))["steps"].item()]
    whole = flows.finish(text, "rounds=7", script=script)
    assert steps == [load_file(whole.directory.checkpoint(7))["steps"].item()]


def test_a_model_that_updates_in_waiting_were_trained_from_stays(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            base = run.fold(model, run.train(model, ["site-1"]))
            waiting = list(run.train(base, ["site-2"]))
            model, base = run.fold(base, run.train(base, ["site-1"])), None
            model = run.fold(model, run.train(model, ["site-1"]))
            run.evaluate(model)
            model = run.fold(waiting[0].base, waiting)
            see(number, load(model))
            waiting.clear()
        return model


    def load(model):
        from safetensors.torch import load_file
        path = run_folder() / "checkpoints" / f"round-{model.round:04d}.safetensors"
        return load_file(path)["steps"].item()
    """
    script = adding({}).replace("float(number)", "float('nan')")
    run = flows.finish(text, "checkpoints.keep=1", script=script)
    assert flows.seen() == ["1, 3", "2, 6"]
    assert models(run) == ["round-0002.safetensors"]


def test_a_model_that_nobody_could_train_goes_like_any_other(flows):
    script = adding({("site-1", each): "raise KeyError('oops')" for each in (1, 2, 3)})
    how = ["workflow.type=cyclic", "rounds=4", "checkpoints.keep=1", "clients.bench_after=0", QUIET]
    run = flows.jobs.run(script, *how)
    assert run.summary.status == "finished", run.summary.error
    assert len(run.summary.failures) == 3
    assert models(run) == ["round-0004.safetensors"]


@pytest.mark.nightly
def test_updates_that_are_in_no_model_are_removed_at_the_end(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            updates = run.train(model, run.sites)
            model = run.fold(model, updates[:1])
            see(waiting())
            die_here(f"{number}")
        return model
    """
    how = [QUIET, "clients.parallel=1", LARGE]
    run = flows.killed(text, *how, place="1")
    resumed = flows.resume(run, text, *how)
    second = [f"effect-000{number}/site-2.safetensors" for number in (1, 3)]
    assert flows.seen() == [f"{second[:1]}", f"{second[:1]}", f"{second}"]
    assert not (resumed.directory.path / "updates").exists()


def test_only_live_effects_remove_files(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            model = run.fold(model, run.train(model, run.sites))
            run.evaluate(model)
            see(number, on_disk())
        return model
    """ + HOPS.partition("return model\n")[2].replace("\n", "\n    ")
    run = flows.finish(text, "rounds=4", script=adding({}))
    flows.seen()
    resumed = flows.resume(run, text, "rounds=5", "checkpoints.keep=1", script=adding({}))
    seen = flows.seen()
    # As long as it is replayed, all that is there stays, though no more is kept from now on.
    everything = f"{[name(number) for number in range(5)]}"
    assert seen[:3] == [f"{number}, {everything}" for number in (1, 2, 3)]
    assert seen[4] == f"5, {[name(5)]}"
    assert models(resumed) == ["round-0005.safetensors"]


def test_a_workflow_may_end_with_any_of_its_models(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        seen = {0: model}
        for number in run.rounds():
            model = run.fold(model, run.train(model, run.sites))
            run.evaluate(model)
            seen[number] = model
        die_here()
        return seen[run.best.round]
    """
    # The second is the best.
    how, script = ["rounds=3", "checkpoints.keep=1"], adding({})
    script = script.replace("float(number)", "[0.1, 0.9, 0.5][number - 1]")
    run = flows.killed(text, *how, script=script)
    assert len(models(run)) == 4
    resumed = flows.resume(run, text, *how, script=script)
    assert models(resumed) == ["round-0002.safetensors", "round-0003.safetensors"]
    assert resumed.directory.final_model.samefile(resumed.directory.checkpoint(2))
    assert resumed.directory.best_model.samefile(resumed.directory.checkpoint(2))


@pytest.mark.nightly
def test_a_model_that_turns_out_unsound_in_mid_run_voids_what_came_after_it(flows):
    # It is not the newest one, so that only who refers to it finds out.
    text = """
    def flow(run):
        model = run.initial_model()
        first = None
        for number in run.rounds():
            see(number)
            try:
                if number == 3:
                    die_here()
                    model = run.fold(first, run.train(first, run.sites))
                else:
                    model = run.fold(model, run.train(model, run.sites))
            except Exception as error:
                see(error)
            first = first or model
        return model
    """
    expected = flows.finish(text, "rounds=3")
    flows.seen()
    run = flows.killed(text, "rounds=3")
    path = run.directory.checkpoint(1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    flows.seen()
    resumed = flows.resume(run, text, "rounds=3")
    assert results(resumed) == results(expected)
    assert flows.seen() == ["1", "2", "3", "1", "2", "3"]
    assert any("went back to before effect 2" in each for each in resumed.summary.warnings)


TWICE = """
def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        first = run.fold(model, run.train(model, run.sites), at=%s)
        second = run.fold(first, run.train(first, run.sites), at=%s)
        third = run.fold(first, run.train(first, run.sites[:2]), at=%s)
        run.evaluate(second)
        model = first
    see(first.digest)
    return model
"""


@pytest.mark.nightly
def test_an_earlier_model_of_a_round_stays_what_it_is(flows):
    run = flows.finish(TWICE % (None, None, None), "clients.count=3", LARGE)
    (digest,) = flows.seen()
    assert body_digest(FileSource(run.directory.final_model)) == digest.strip("'")
    # Also where sites fold, and offer a file that has the name of an earlier one.
    sites = ["site-3"], ["site-1"], ["site-2"]
    elsewhere = flows.finish(TWICE % sites, "clients.count=3", LARGE)
    assert flows.seen() == [digest]
    assert results(elsewhere) == results(run)
