"""Codecs of updates: what is lost is the same, however the bytes travel, and is sent later."""

import shutil

import pytest
import torch
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import QUIET

MODEL = """
import torch


def build():
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(300, 300, generator=generator),
        "norm": torch.randn(300, generator=generator),
        "half": torch.randn(70_000, generator=generator).bfloat16(),
        "b": torch.randn(3, 5, generator=generator, dtype=torch.float64),
        "steps": torch.tensor(0),
    }
"""
TRAIN = """
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    changes = {{
        name: torch.randn(each.shape).to(each.dtype) if each.is_floating_point()
        else torch.ones_like(each)
        for name, each in model.params.items()
    }}
    if {differences}:
        flare.send(flare.FLModel(params=changes, params_type="DIFF"))
    else:
        params = {{name: each + changes[name] for name, each in model.params.items()}}
        flare.send(flare.FLModel(params=params, meta={{"partial": {partial}}}))
"""
WEIGHTS = TRAIN.format(differences=False, partial=False)
DIFFERENCES = TRAIN.format(differences=True, partial=False)
CODECS = ("cast", "int8", "int4", "topk", "ternary")


def using(codec):
    return f"streaming.codecs.up=[{codec}]", "streaming.codecs.require_lossless=[norm]"


def digest(jobs, script, *overrides):
    run = jobs.run(script, QUIET, *overrides, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    shutil.rmtree(run.directory.path)
    return run.summary.model.digest


@pytest.mark.nightly
@first_and_nightly("script", [WEIGHTS, DIFFERENCES], ids=["weights", "differences"])
@first_and_nightly("codec", CODECS)
def test_what_is_lost_depends_on_nothing_but_the_job(jobs, codec, script):
    common = ("clients.count=4", *using(codec))
    first = digest(jobs, script, *common)
    for overrides in (
        ("streaming.tensor_download_chunk_size=4 KiB",),
        ("clients.parallel=1",),
        ("clients.parallel=2", "aggregation.memory_budget=2 MiB"),
        ("streaming.mode=push",),
        ("streaming.mode=native",),
        ("workflow.type=swarm",),
    ):
        assert digest(jobs, script, *common, *overrides) == first, overrides
    assert digest(jobs, script, "clients.count=4") != first


@pytest.mark.nightly
@pytest.mark.parametrize("codec", ["int8", "topk"])
def test_what_is_lost_does_not_depend_on_chunks_and_workers(jobs, codec):
    found = {
        digest(
            jobs,
            WEIGHTS,
            "clients.count=8",
            f"clients.parallel={workers}",
            f"streaming.tensor_download_chunk_size={chunk}",
            *using(codec),
        )
        for workers, chunk in ((1, "2 MiB"), (2, "4 KiB"), (8, "4 KiB"), (8, "2 MiB"))
    }
    assert len(found) == 1


@pytest.mark.nightly
@first_and_nightly("codec", CODECS, brief=1)
def test_after_a_resume_what_was_left_out_is_sent_as_it_would_have_been(jobs, codec):
    whole = jobs.run(WEIGHTS, QUIET, "rounds=4", *using(codec), model=MODEL)
    part = jobs.run(WEIGHTS, QUIET, "rounds=2", *using(codec), model=MODEL)
    again = jobs.go_on(part, WEIGHTS, QUIET, "rounds=4", *using(codec), model=MODEL)
    assert again.summary.model.digest == whole.summary.model.digest


def moved(run):
    """How far each tensor of a run has come from its first model."""
    before, after = load_file(run.directory.checkpoint(0)), load_file(run.directory.final_model)
    return {name: after[name].double() - before[name].double() for name in before}


@first_and_nightly("codec", CODECS, brief=2)
def test_what_may_lose_nothing_loses_nothing(jobs, codec):
    exact = moved(jobs.run(WEIGHTS, QUIET, model=MODEL))
    lossy = moved(jobs.run(WEIGHTS, QUIET, *using(codec), model=MODEL))
    for name in ("norm", "steps"):
        assert torch.equal(exact[name], lossy[name])
    assert not torch.equal(exact["w"], lossy["w"])


def test_what_topk_leaves_out_comes_with_later_updates(jobs):
    """The same change each round: with what was left out, it has come after some rounds."""
    script = WEIGHTS.replace(
        "torch.randn(each.shape)", "torch.linspace(1, 2, each.numel()).view(each.shape)"
    )
    run = jobs.run(
        script, QUIET, "rounds=10", "streaming.codecs.up=[{type=topk,fraction=0.25}]", model=MODEL
    )
    change = torch.linspace(1, 2, 90_000).view(300, 300)
    # A quarter is sent each time: what waits longest has waited for some rounds.
    rest = 10 * change - moved(run)["w"]
    assert (rest.abs() <= 5.01 * change).all()
    assert rest.mean() < 3
    assert run.summary.transfer.up.bytes < 0.6 * 20 * run.summary.model.bytes


def test_bytes_of_updates_are_those_that_are_sent(jobs):
    run = jobs.run(WEIGHTS, QUIET, *using("int8"), model=MODEL)
    up, size = run.summary.transfer.up, run.summary.model.bytes
    assert up.bytes < 0.36 * 4 * size  # a quarter of float32, and half of bfloat16
    assert run.summary.transfer.down.bytes == 4 * size


def test_an_update_of_some_tensors_is_encoded_too(jobs):
    script = (
        TRAIN.format(differences=False, partial=True)
        .replace("params = {", "params = {")
        .replace(
            "for name, each in model.params.items()}\n        flare",
            "for name, each in model.params.items() if name != 'half'}\n        flare",
        )
    )
    run = jobs.run(script, QUIET, *using("int8"), model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    change = moved(run)
    assert not change["half"].any()
    assert change["w"].any()


def test_a_number_that_cannot_be_encoded_fails_its_site_alone(jobs):
    script = WEIGHTS.replace(
        "        flare.send(flare.FLModel(params=params",
        "        if flare.get_site_name() == 'site-2':\n"
        "            params['w'][7, 3] = float('nan')\n"
        "        flare.send(flare.FLModel(params=params",
    )
    run = jobs.run(script, QUIET, "clients.min_updates=1", *using("topk"), model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    assert {each.site for each in run.summary.failures} == {"site-2"}
    assert "tensor 'w'" in run.summary.failures[0].reason


EXACT = "[delta, shuffle, zstd]"
# Numbers of which exclusive ors, byte orders and compressors must keep every bit.
ODD = """
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    params = {name: each.clone() for name, each in model.params.items()}
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"score": float(params["b"].sum())}))
        continue
    w = params["w"]
    w.mul_(1 + 1e-6 * torch.randn(w.shape))
    w[0] = -w[0]
    w[1] = -0.0
    bits = params["half"].view(torch.int16)
    bits[:50] = 0x7FC1 + torch.arange(50, dtype=torch.int16)
    params["b"].view(torch.int64)[0] = 0x7FF8_0000_0000_1234
    flare.send(flare.FLModel(params=params))
"""
ANY_BITS = ("aggregation.on_nonfinite=allow", "clients.count=1")


@first_and_nightly(
    "overrides",
    [
        pytest.param((), id="own worker"),
        pytest.param(("clients.count=4",), id="four sites"),
        pytest.param(("clients.count=4", "clients.parallel=1"), id="a shared worker"),
        pytest.param(("streaming.tensor_download_chunk_size=4 KiB",), id="chunks of 4 KiB"),
        pytest.param(("streaming.reuse=off",), id="without reuse"),
        pytest.param(("checkpoints.keep=1",), id="without earlier models"),
        pytest.param(("workflow.type=cyclic", "clients.count=3"), id="cyclic"),
        pytest.param(("workflow.type=swarm", "clients.count=3"), id="swarm"),
    ],
    brief=1,
)
def test_exact_codecs_leave_no_trace(jobs, overrides):
    common = (*ANY_BITS, "rounds=4", "workflow.args.evaluate_every=1", *overrides)
    plain = jobs.run(ODD, *common, model=MODEL)
    coded = jobs.run(ODD, *common, *_codecs(EXACT), model=MODEL)
    assert coded.summary.status == plain.summary.status == "finished", coded.summary.error
    assert coded.summary.model.digest == plain.summary.model.digest
    down = coded.summary.transfer.down
    assert "swarm" in str(overrides) or down.bytes < plain.summary.transfer.down.bytes


@pytest.mark.nightly
def test_exact_codecs_leave_no_trace_after_fifty_rounds(jobs):
    common = (*ANY_BITS, "rounds=50", "checkpoints.keep=1", "workflow.args.evaluate_every=0")
    plain = jobs.run(ODD, *common, model=MODEL)
    coded = jobs.run(ODD, *common, *_codecs("[delta, zstd]"), model=MODEL)
    assert coded.summary.rounds_completed == plain.summary.rounds_completed == 50
    assert coded.summary.model.digest == plain.summary.model.digest
    assert coded.summary.transfer.down.bytes < plain.summary.transfer.down.bytes


def _codecs(listed):
    return f"streaming.codecs.up={listed}", f"streaming.codecs.down={listed}"


def test_exact_codecs_make_small_changes_small(jobs):
    common = (*ANY_BITS, "rounds=6", "workflow.args.evaluate_every=0")
    plain = jobs.run(ODD, *common, model=MODEL).summary.transfer
    coded = jobs.run(ODD, *common, *_codecs(EXACT), model=MODEL).summary.transfer
    # The first model comes whole; noise of float32 does not get much smaller by itself.
    assert coded.up.bytes < 0.6 * plain.up.bytes
    assert coded.down.bytes < 0.7 * plain.down.bytes


# Changes nothing in half of each tensor, so that there is something to compress.
HALF = WEIGHTS.replace("each + changes[name]", "each + changes[name] * (changes[name] > 0)")


def test_exact_codecs_after_one_with_a_loss_change_nothing(jobs):
    common = (QUIET, "clients.count=2")
    alone = jobs.run(HALF, *common, *using("int8"), model=MODEL).summary
    both = jobs.run(HALF, *common, *using("int8, zstd"), model=MODEL).summary
    assert both.model.digest == alone.model.digest
    assert both.transfer.up.bytes < 0.99 * alone.transfer.up.bytes


def test_a_site_that_has_lost_its_model_gets_the_next_one_whole(jobs):
    """Its process dies: the next one has no model to compare with."""
    died = jobs.folder / "died"
    script = ODD.replace(
        "    w = params",
        "    mine = flare.get_site_name() == 'site-1' and model.current_round == 2\n"
        f"    if mine and not __import__('os').path.exists({str(died)!r}):\n"
        f"        open({str(died)!r}, 'w').close()\n"
        "        __import__('os')._exit(1)\n"
        "    w = params",
    )
    common = ("rounds=4", "clients.count=2", "clients.min_updates=1", ANY_BITS[0])
    coded = jobs.run(script, *common, *_codecs(EXACT), model=MODEL)
    assert coded.summary.status == "finished", coded.summary.error
    assert died.exists()
    died.unlink()
    plain = jobs.run(script, *common, model=MODEL)
    assert coded.summary.model.digest == plain.summary.model.digest
