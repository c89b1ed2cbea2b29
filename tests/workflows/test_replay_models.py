"""The files of models: their names, which of them stay, and how replay finds them."""

import errno
import gc
import json
import os

import pytest
from flows import models, records
from journal_support import flip
from safetensors.torch import load_file
from training_scripts import QUIET, adding, noisy

from flstream.errors import UsageError
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest

HOPS = """
for site in run.sites:
    model = run.adopt(run.train(model, [site]))
    see(model, on_disk())
    break_off(f"{number} {site}")
run.evaluate(model)
"""
THREE = ["clients.count=3", QUIET]


def name(number, step=None):
    return f"round-{number:04d}" + ("" if step is None else f".step-{step:02d}")


def test_a_model_has_the_name_of_its_step_and_the_last_of_a_round_that_of_the_round_too(flows):
    run = flows.finish(HOPS, *THREE, script=adding({}))
    first = [name(1), name(1, 0), name(1, 1)]
    assert models(run) == [name(0), *first, name(2), name(2, 0), name(2, 1)]
    seen = flows.seen()
    steps = [name(1, step) for step in range(3)]
    assert seen[0].endswith(f", {[name(0), *steps[:1]]}")
    assert seen[2].endswith(f", {[name(0), *steps]}")
    assert seen[3].endswith(f", {[name(0), *first, name(2, 0)]}")
    for number in (1, 2):
        last = run.directory.step_checkpoint(number, 2)
        assert last.samefile(run.directory.checkpoint(number))
    made = [each.model for each in records(run) if each.model is not None]
    places = [(each.round, each.version, each.step) for each in made]
    assert places == [(1, 1, 0), (1, 2, 1), (1, 3, 2), (2, 4, 0), (2, 5, 1), (2, 6, 2)]
    for each in made:
        path = run.directory.model_file(each)
        assert body_digest(FileSource(path)) == each.digest
        # Each site has added its number: 1, 2 and 3.
        due = [0, 1, 3, 6, 7, 9, 12][each.version]
        assert load_file(path)["steps"].item() == due
    assert run.directory.final_model.samefile(run.directory.checkpoint(2))


def test_without_hard_links_the_last_model_of_a_round_is_renamed(flows, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    expected = flows.finish(HOPS, *THREE, script=adding({}))
    flows.seen()
    monkeypatch.setattr(os, "link", refuse)
    script = adding({})
    run = flows.broken(HOPS, *THREE, place="2 site-1", script=script)
    for how in ({}, {"from_round": 1}):
        run = flows.resume(run, HOPS, *THREE, script=script, **how)
        assert run.summary.model.digest == expected.summary.model.digest
        assert models(run) == models(expected)
        assert not run.directory.step_checkpoint(1, 2).exists()
        assert run.directory.step_checkpoint(1, 1).is_file()


def test_a_folder_of_models_that_is_removed_in_mid_run_is_made_again_with_a_warning(flows):
    remove = """import pathlib, shutil
shutil.rmtree(pathlib.Path(flare.system_info()["site_dir"]).parents[1] / "checkpoints")"""
    text = "model = run.adopt(run.train(model, ['site-1']))"
    run = flows.finish(text, QUIET, script=adding({("site-1", 2): remove}))
    [warning] = run.summary.warnings
    assert f"{run.directory.checkpoints} was removed during the run" in warning
    assert models(run) == [name(2)]
    assert load_file(run.directory.final_model)["steps"].item() == 2


def test_replay_finds_models_by_their_digests(flows):
    run = flows.broken(HOPS, *THREE, "checkpoints.keep=1", place="2 site-1")
    live = flows.seen()
    resumed = flows.resume(run, HOPS, *THREE, "checkpoints.keep=1")
    seen = [line.split(", [")[0] for line in flows.seen()]
    assert seen[: len(live)] == [line.split(", [")[0] for line in live]
    made = [each.model.digest for each in records(resumed) if each.model is not None]
    assert len(set(made)) == len(made) == len(seen) == 6
    assert body_digest(FileSource(resumed.directory.final_model)) == made[-1]
    assert models(resumed) == [name(2)]


def test_a_model_that_the_program_refers_to_stays_and_others_go(flows):
    text = """
    model = run.fold(model, run.train(model, run.sites))
    run.evaluate(model)
    kept = model if number == 2 else kept if number > 2 else None
    if number == 5:
        see(on_disk())
        model = run.fold(kept, run.train(kept, run.sites))
        kept = None
    """
    script = adding({}, "float('nan')")
    run = flows.finish(text, "rounds=7", "checkpoints.keep=1", script=script)
    assert flows.seen() == [f"{[name(2), name(5, 0)]}"]
    assert models(run) == [name(7)]
    # Each fold adds 5 / 3, which rounds to 2: the fifth one to what came of the second.
    assert load_file(run.directory.checkpoint(7))["steps"].item() == 2 * (2 + 1 + 2)


def test_a_model_that_updates_in_waiting_were_trained_from_stays(flows):
    text = """
    from safetensors.torch import load_file

    base = run.fold(model, run.train(model, ["site-1"]))
    waiting = list(run.train(base, ["site-2"]))
    model, base = run.fold(base, run.train(base, ["site-1"])), None
    model = run.fold(model, run.train(model, ["site-1"]))
    run.evaluate(model)
    model = run.fold(waiting[0].base, waiting)
    path = run_folder() / f"checkpoints/round-{number:04d}.step-03.safetensors"
    see(number, load_file(path)["steps"].item())
    waiting.clear()
    """
    script = adding({}, "float('nan')")
    run = flows.finish(text, "checkpoints.keep=1", script=script)
    assert flows.seen() == ["1, 3", "2, 6"]
    assert models(run) == [name(2)]


def test_only_live_effects_remove_files_and_a_workflow_may_end_with_any_of_its_models(flows):
    text = """
    def flow(run):
        model = run.initial_model()
        known = {0: model}
        for number in run.rounds():
            model = run.fold(model, run.train(model, run.sites))
            run.evaluate(model)
            see(number, on_disk())
            known[number] = model
        see(on_disk())
        break_off()
        return known[run.best.round]
    """
    # The second is the best.
    script = adding({}, "[0.1, 0.9, 0.5, 0.5][number - 1]")
    run = flows.broken(text, "rounds=3", script=script)
    flows.seen()
    how = ["rounds=4", "checkpoints.keep=1"]
    resumed = flows.resume(run, text, *how, script=script)
    # As long as it is replayed, all that is there stays, though less is kept from now on; and what
    # the program refers to stays to its end.
    there = [name(0), name(1), name(2)]
    replayed = [f"{number}, {[*there, name(3, 0)]}" for number in (1, 2, 3)]
    there += [name(3), name(4, 0)]
    assert flows.seen() == [*replayed, f"4, {there}", f"{there}"]
    assert models(resumed) == [name(2), name(4)]
    assert resumed.directory.final_model.samefile(resumed.directory.checkpoint(2))


def test_a_model_that_turns_out_unsound_on_replay_is_refused_with_a_sentence(flows):
    # It is not the newest one, so that only who refers to it finds out.
    text = """
    if number == 3:
        break_off()
        model = first
    model = run.fold(model, run.train(model, run.sites))
    first = model if number == 1 else first
    """
    expected = flows.finish(text, "rounds=3", QUIET)
    run = flows.broken(text, "rounds=3", QUIET)
    path = run.directory.step_checkpoint(1, 0)
    sound = path.read_bytes()
    flip(path)
    needed = f"a file that is needed again cannot be used: {path} has"
    with pytest.raises(UsageError, match=f"{needed}.*--from-round 0"):
        flows.resume(run, text, "rounds=3", QUIET)
    path.write_bytes(sound)
    resumed = flows.resume(run, text, "rounds=3", QUIET)
    assert resumed.summary.model.digest == expected.summary.model.digest


HELD = """
def flow(run):
    first = model = run.initial_model()
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sites))
        if number == 1:
            first = model
        if number == 3:
            break_off()
    return run.fold(first, run.train(first, run.sites))
"""


def test_no_round_is_named_to_go_back_to_where_none_is_left(flows):
    how = ["rounds=3", "checkpoints.keep=1", QUIET]
    run = flows.broken(HELD, *how)
    flip(run.directory.step_checkpoint(1, 0))
    with pytest.raises(UsageError, match=r"round-0001.*put it back from a copy") as caught:
        flows.resume(run, HELD, *how)
    assert "--from-round" not in str(caught.value)  # round 0 has gone by then
    assert json.loads(run.directory.summary.read_text())["status"] == "failed"
    flip(run.directory.step_checkpoint(1, 0))
    flows.resume(run, HELD, *how)


def test_a_resumed_run_that_has_gone_on_fails_where_a_model_turns_out_unsound(flows):
    how = ["rounds=3", "checkpoints.keep=1", QUIET]
    text = HELD.replace("number == 3", "number == 2")
    run = flows.broken(text, *how)
    flip(run.directory.step_checkpoint(1, 0))
    failed = flows.jobs.go_on(run, noisy(), flows.write(text), *how)
    assert failed.summary.status == "failed"
    assert "a file that is needed again cannot be used" in failed.summary.error
    assert len(records(failed)) == 3  # the fold of round 3 was done


def test_no_model_stays_longer_than_it_is_kept_where_those_of_sites_are_collected(flows):
    gc.disable()  # no collector may be what frees a model
    try:
        how = ["rounds=4", "checkpoints.keep=1", "clients.count=3"]
        stages = """workflow=[{type=cyclic, args={evaluate_every=0}}, {type=cross_site}]"""
        run = flows.jobs.run(adding({}), stages, *how)
    finally:
        gc.enable()
    assert models(run) == [name(4)]
