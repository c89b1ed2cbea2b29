"""Codecs in whole runs: what is lost and named, what is sent later, and what may not be lost."""

import itertools

import pytest
import torch
from safetensors.torch import load_file
from training_scripts import QUIET, plain

MODEL = """
import torch


def build():
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(300, 300, generator=generator),
        "norm": torch.randn(300, generator=generator),
        "half": torch.randn(70_000, generator=generator).bfloat16(),
        "steps": torch.tensor(0),
    }
"""


# Adds what does not depend on seeds, so that what a codec loses is known, in the memory that the
# model was received into; and writes down what it has received.
def training(body=""):
    return plain(
        """
        for each in params.values():
            if each.is_floating_point():
                each.add_(torch.linspace(1, 2, each.numel()).view(each.shape).to(each.dtype))
            else:
                each.add_(1)
        """
        + body,
        first="""
        kind = "evaluate" if flare.is_evaluate() else "train"
        path = f"{flare.system_info()['site_dir']}/{kind}-{model.current_round}.pt"
        torch.save(dict(params), path)
        """,
    )


PLAIN = training()


def built():
    """The initial model."""
    scope = {}
    exec(MODEL, scope)
    return scope["build"]()


def using(codec, way="up"):
    return f"streaming.codecs.{way}=[{codec}]", "streaming.codecs.require_lossless=[norm]"


def test_an_update_loses_only_what_it_may_and_only_what_is_sent_is_counted(jobs):
    deeds = """
        if site == "site-2":
            params, meta = {name: params[name] for name in params if name != "half"}, {"partial": 1}
        if site == "site-3":
            params["w"][7, 3] = float("nan")
        """
    how = ["clients.count=3", "clients.min_updates=2", "rounds=1", QUIET]
    run = jobs.run(training(deeds), *how, *using("int8"), model=MODEL).finished()
    before, after = built(), load_file(run.directory.final_model)
    change = torch.linspace(1, 2, 300, dtype=torch.float64)
    torch.testing.assert_close(after["norm"], (before["norm"] + change).float())
    assert after["steps"] == 1
    assert not torch.equal(after["w"], before["w"])
    [failure] = run.summary.failures
    assert failure.site == "site-3"
    assert "tensor 'w'" in failure.reason
    size, transfer = run.summary.model.bytes, run.summary.transfer
    assert transfer.up.bytes < 0.36 * 3 * size  # a quarter of float32, and half of bfloat16
    assert transfer.down.bytes == 3 * size


def test_what_topk_leaves_out_comes_with_later_updates(jobs):
    topk = "streaming.codecs.up=[{type=topk,args{fraction=0.25}}]"
    run = jobs.run(PLAIN, QUIET, "rounds=10", topk, model=MODEL).finished()
    change = torch.linspace(1, 2, 90_000).view(300, 300)
    moved = load_file(run.directory.final_model)["w"].double() - built()["w"].double()
    # A quarter is sent each time: what waits longest has waited for some rounds.
    rest = 10 * change - moved
    assert (rest.abs() <= 5.01 * change).all()
    assert rest.mean() < 3
    assert run.summary.transfer.up.bytes < 0.6 * 20 * run.summary.model.bytes


# A codec of one's own, which is float16 for each number but for what is done to it before.
OWN = """
import numpy as np


class Halves:
    def nbytes(self, dtype, count):
        return 2 * count

    def encode(self, numbers, place):
        return (numbers * %s).astype(np.float16).tobytes()

    def decode(self, data, place):
        return np.frombuffer(data, np.float16).astype(np.float32)
"""


@pytest.mark.parametrize("codec", ["int8, delta, zstd", '"mine.py:Halves"'])
def test_sites_have_the_bits_that_the_server_keeps(jobs, codec):
    (jobs.folder / "mine.py").write_text(OWN % "1")
    how = ["workflow.args.evaluate_every=1", *using(codec, "down")]
    run = jobs.run(PLAIN, *how, model=MODEL).finished()
    files = {"train": 0, "evaluate": 1}
    for number, (kind, later) in itertools.product(range(2), files.items()):
        kept = load_file(run.directory.checkpoint(number + later))
        for site in ("site-1", "site-2"):
            received = torch.load(run.directory.site(site) / f"{kind}-{number}.pt")
            assert received.keys() == kept.keys()
            for name, tensor in received.items():
                assert torch.equal(tensor, kept[name]), (kind, number, site, name)
    assert run.summary.transfer.down.bytes < 0.75 * 2 * 2 * 2 * run.summary.model.bytes
    before, first = built(), load_file(run.directory.checkpoint(0))
    for name in ("norm", "steps"):
        assert torch.equal(first[name], before[name])
    assert not torch.equal(first["w"], before["w"])


MASK = MODEL.replace("return {", 'return {"mask": torch.full((300,), -torch.inf),')


@pytest.mark.parametrize(
    ("codec", "model", "words"),
    [
        ('"mine.py:Halves"', MODEL, "mine.py:Halves changes numbers of tensor"),
        ("int8", MASK, "tensor 'mask' has -inf as element 0"),
    ],
)
def test_a_codec_that_fails_on_a_model_ends_the_run_before_a_site_has_any(
    jobs, codec, model, words
):
    (jobs.folder / "mine.py").write_text(OWN % "0.9")
    run = jobs.run(PLAIN, QUIET, *using(codec, "down"), model=model)
    assert run.summary.status == "failed"
    assert words in run.summary.error
    assert not list(run.directory.sites.rglob("*.pt"))
