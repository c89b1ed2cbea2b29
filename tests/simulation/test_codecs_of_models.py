"""Codecs of models with a loss: the server keeps what sites receive, whatever the way."""

import shutil

import pytest
import torch
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from test_codecs import MODEL
from training_scripts import QUIET

from flstream.errors import UsageError

# Says what it has received, and trains in the memory that it was received into.
TRAIN = """
import os
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    folder = os.path.join({folder!r}, flare.get_site_name())
    os.makedirs(folder, exist_ok=True)
    kind = "evaluate" if flare.is_evaluate() else "train"
    torch.save(dict(model.params), os.path.join(folder, f"{{kind}}-{{model.current_round}}.pt"))
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={{"score": float(model.params["b"].sum())}}))
        continue
    with torch.no_grad():
        for each in model.params.values():
            if each.is_floating_point():
                each.add_(0.1 * torch.randn(each.shape).to(each.dtype))
    flare.send(flare.FLModel(params=model.params))
"""
CODECS = ("cast", "{type=cast,to=f16}", "int8", "int4", "int8, zstd", "int8, delta, zstd")


def using(codec):
    return f"streaming.codecs.down=[{codec}]", "streaming.codecs.require_lossless=[norm]"


def script(folder):
    return TRAIN.format(folder=str(folder))


def run_of(jobs, *overrides):
    run = jobs.run(script(jobs.folder / "seen"), QUIET, *overrides, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    return run


def digest(jobs, *overrides):
    run = run_of(jobs, *overrides)
    shutil.rmtree(run.directory.path)
    return run.summary.model.digest


@first_and_nightly("codec", CODECS, brief=2)
def test_sites_have_the_bits_that_the_server_keeps(jobs, codec):
    run = run_of(jobs, "rounds=3", "workflow.args.evaluate_every=1", *using(codec))
    for number in range(3):
        kept = load_file(run.directory.checkpoint(number))
        after = load_file(run.directory.checkpoint(number + 1))
        for site in ("site-1", "site-2"):
            folder = jobs.folder / "seen" / site
            for seen, model in (
                (folder / f"train-{number}.pt", kept),
                (folder / f"evaluate-{number}.pt", after),
            ):
                received = torch.load(seen)
                assert received.keys() == model.keys()
                for name, each in received.items():
                    assert torch.equal(each, model[name]), (seen, name)
    size = run.summary.model.bytes
    assert run.summary.transfer.down.bytes < 0.75 * 2 * 2 * 3 * size


@pytest.mark.nightly
@first_and_nightly("codec", CODECS)
def test_the_bits_depend_on_nothing_but_the_job(jobs, codec):
    common = ("clients.count=4", "rounds=2", *using(codec))
    first = digest(jobs, *common)
    for overrides in (
        ("streaming.tensor_download_chunk_size=4 KiB",),
        ("streaming.reuse=off",),
        ("clients.parallel=1",),
        ("clients.parallel=2", "aggregation.memory_budget=2 MiB"),
        ("workflow.type=swarm",),
        *([] if "zstd" in codec else [("streaming.mode=push",), ("streaming.mode=native",)]),
        *([] if "zstd" in codec else [("streaming.mode=map",)]),
    ):
        assert digest(jobs, *common, *overrides) == first, overrides
    assert digest(jobs, *common[:2]) != first


@pytest.mark.nightly
def test_exact_codecs_after_one_with_a_loss_change_nothing(jobs):
    alone = digest(jobs, "rounds=3", *using("int8"))
    for codec in CODECS[4:]:
        assert digest(jobs, "rounds=3", *using(codec)) == alone


@pytest.mark.nightly
@first_and_nightly("codec", ["int8", "int4, delta, zstd"], brief=1)
def test_a_run_that_is_resumed_comes_to_the_same_bits(jobs, codec):
    whole = run_of(jobs, "rounds=4", *using(codec))
    part = run_of(jobs, "rounds=2", *using(codec))
    text = script(jobs.folder / "seen")
    again = jobs.go_on(part, text, QUIET, "rounds=4", *using(codec), model=MODEL)
    assert again.summary.model.digest == whole.summary.model.digest


def test_both_ways_may_lose_bits(jobs):
    both = ("streaming.codecs.up=[int8]", *using("int8"))
    found = {
        digest(jobs, *both, *overrides)
        for overrides in ((), ("clients.parallel=1",), ("streaming.reuse=off",))
    }
    assert len(found) == 1
    assert found != {digest(jobs, *using("int8"))}


def test_what_may_lose_nothing_loses_nothing(jobs):
    exact = load_file(run_of(jobs, "rounds=1").directory.checkpoint(0))
    lossy = load_file(run_of(jobs, "rounds=1", *using("int4")).directory.checkpoint(0))
    for name in ("norm", "steps"):
        assert torch.equal(exact[name], lossy[name])
    assert not torch.equal(exact["w"], lossy["w"])


@pytest.mark.nightly
def test_a_model_that_was_evaluated_is_not_sent_again(jobs):
    """What it is encoded to is the same, so the receiver finds that it has it."""
    large = MODEL.replace("300, 300", "1200, 1200")
    common = ("rounds=4", "workflow.args.evaluate_every=1", "clients.count=1", *using("int8"))
    text = script(jobs.folder / "seen").replace(
        "                each.add_", "                each[:1].add_"
    )
    text = text.replace("each.shape", "each[:1].shape")
    sent = {}
    for reuse in ("auto", "off"):
        run = jobs.run(text, QUIET, *common, f"streaming.reuse={reuse}", model=large)
        assert run.summary.status == "finished", run.summary.error
        sent[reuse] = run.summary
    assert sent["auto"].model.digest == sent["off"].model.digest
    assert sent["auto"].transfer.down.bytes < 0.6 * sent["off"].transfer.down.bytes


OWN = """
import numpy as np


class Halves:
    def nbytes(self, dtype, count):
        return 2 * count

    def encode(self, numbers, place):
        return (numbers {times}).astype(np.float16).tobytes()

    def decode(self, data, place):
        return np.frombuffer(data, np.float16).astype(np.float32)
"""


def test_a_codec_of_the_users_own_may_encode_models(jobs):
    (jobs.folder / "mine.py").write_text(OWN.format(times="* 1"))
    own = digest(jobs, "rounds=2", *using('"mine.py:Halves"'))
    assert own == digest(jobs, "rounds=2", *using("{type=cast,to=f16}"))


def test_one_that_changes_what_it_has_decoded_fails_the_run(jobs):
    (jobs.folder / "mine.py").write_text(OWN.format(times="* 0.9"))
    text = script(jobs.folder / "seen")
    run = jobs.run(text, QUIET, *using('"mine.py:Halves"'), model=MODEL)
    assert run.summary.status == "failed"
    assert "mine.py:Halves changes numbers of tensor" in run.summary.error
    assert not (jobs.folder / "seen").exists(), "a site has had a model that is not the server's"


def test_a_number_that_cannot_be_encoded_is_named(jobs):
    mask = '"mask": torch.full((300,), -torch.inf),'
    model = MODEL.replace("    return {", f"    return {{\n        {mask}")
    run = jobs.run(script(jobs.folder / "seen"), QUIET, *using("int8"), model=model)
    assert run.summary.status == "failed"
    assert "tensor 'mask' has -inf as element 0" in run.summary.error
    assert "require_lossless" in run.summary.error


@pytest.mark.parametrize("codec", ["topk", "ternary"])
def test_codecs_of_changes_are_not_for_models(jobs, codec):
    with pytest.raises(UsageError, match=r"codecs.down\[0\].*a codec of whole models"):
        jobs.run(script(jobs.folder), QUIET, *using(codec), model=MODEL)


def test_bodies_beside_a_model_are_not_encoded(jobs):
    with pytest.raises(UsageError, match="without a loss in scaffold"):
        jobs.run(script(jobs.folder), QUIET, "workflow.type=scaffold", *using("int8"), model=MODEL)
