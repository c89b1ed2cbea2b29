"""Training code that fetches some tensors of the global model, by their descriptions."""

import pytest
from safetensors.torch import load_file

FETCHES = """
import flstream.client as flare

flare.init()
while flare.is_running():
    specs = [flare.TensorSpec("b", tags=("aggregated",))]
    tensors = flare.fetch(specs)
    assert list(tensors) == ["b"]
    again = flare.fetch([flare.TensorSpec("steps"), flare.TensorSpec("b")])
    assert list(again) == ["steps", "b"]
    assert (again["b"] == tensors["b"]).all()
    %s
    flare.send(flare.FLModel(params={"b": tensors["b"] + 1}, meta={"partial": True}))
"""


@pytest.mark.parametrize("settings", [(), ("clients.parallel=1",)], ids=["own", "shared"])
def test_what_is_not_asked_for_is_not_sent(jobs, settings):
    run = jobs.run(FETCHES % "", "rounds=2", *settings).finished()
    before, after = (
        load_file(run.directory.checkpoint(number)) for number in (0, run.summary.rounds_completed)
    )
    assert (after["b"] == before["b"] + 2).all()
    assert (after["w"] == before["w"]).all()
    if not settings:
        most = run.summary.clients * 2 * 2 * (before["b"].nbytes + 8)
        assert 0 < run.summary.transfer.down.bytes <= most < before["w"].nbytes * 4


def test_the_whole_model_may_be_received_after_it(jobs):
    jobs.run(
        FETCHES % "assert (flare.receive().params['b'] == again['b']).all()", "rounds=1"
    ).finished()


@pytest.mark.parametrize(
    ("spec", "settings", "sentence"),
    [
        ('"b", 7', (), "is no tensor of the task's model; give its name, the round 0"),
        ('"b", report=True', (), "is no tensor of the task's model"),
        ('"c"', (), "tensor 'c' is not among what server offers"),
        ('"b"', ("streaming.codecs.down=[zstd]",), "call receive(), or leave the codecs out"),
    ],
)
def test_what_cannot_be_fetched_is_named(jobs, spec, settings, sentence):
    script = f"""
import flstream.client as flare

flare.init()
while flare.is_running():
    flare.fetch([flare.TensorSpec({spec})])
"""
    run = jobs.run(script, *settings)
    assert sentence in run.summary.error
