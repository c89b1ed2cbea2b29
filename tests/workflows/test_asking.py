"""Asking sites, models of a workflow's own, and values that are computed once."""

import pytest
from flows import models, records
from safetensors.torch import load_file
from training_scripts import QUIET

ANSWERS = """
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    word = model.meta["word"]
    if word == "fail":
        raise ValueError("asked to fail")
    if word == "train":
        model.params["w"] += 1
        flare.send(flare.FLModel(params=model.params, meta={"word": word}))
    else:
        flare.send(flare.FLModel(metrics={"length": len(word)}, meta={"word": word * 2}))
"""
THREE = ["clients.count=3", "clients.suspend_after=0", QUIET]


def test_each_site_is_sent_its_own_values_and_may_answer_without_tensors(flows):
    run = flows.finish(
        """
        words = dict(zip(run.sites, ["train", "tell", "fail"]))
        answers = run.ask(model, {site: {"word": words[site]} for site in words})
        see([(each.site, each.has_tensors, each.meta, each.metrics) for each in answers])
        see(sorted(answers.failures))
        model = run.fold(model, [each for each in answers if each.has_tensors])
        """,
        *THREE,
        "rounds=1",
        script=ANSWERS,
    )
    assert flows.seen() == [
        str(
            [
                ("site-1", True, {"word": "train"}, {}),
                ("site-2", False, {"word": "telltell"}, {"length": 4.0}),
            ]
        ),
        str(["site-3"]),
    ]
    before, after = (load_file(run.directory.checkpoint(number)) for number in (0, 1))
    assert (after["w"] - before["w"]).mean().item() == pytest.approx(1.0)


def test_an_answer_without_tensors_is_not_folded(flows):
    text = """
    answers = run.ask(model, {site: {"word": "tell"} for site in run.sites})
    model = run.fold(model, VALUE)
    """
    read = flows.fail(text.replace("VALUE", "list(answers)"), *THREE, script=ANSWERS)
    assert "answer of site-1, which has sent no tensors" in read
    unread = flows.finish(text.replace("VALUE", "answers"), *THREE, "rounds=1", script=ANSWERS)
    assert "has no params" in str(unread.summary.failures)
    assert models(unread) == ["round-0000", "round-0001"]


STORES = """
from unittest.mock import patch
from safetensors.torch import load_file, save_file
path = run_folder() / f"mine-{number}.safetensors"
noise = run.remember("noise", lambda: str(__import__("random").SystemRandom().random()).encode())
updates = run.train(model, run.sites)
run.save(updates[0], path)
tensors = load_file(path)
tensors["w"] += float(noise)
save_file(tensors, path)
break_off(f"{number} before")
with patch("flstream.model.checkpoint.sync_directory", lambda _: break_off(f"{number} renamed")):
    model = run.store(model, path)
run.report(model, {"accuracy": float(noise)})
see(noise, model, run.best)
break_off(f"{number} after")
"""


@pytest.mark.parametrize("place", ["1 after", "2 before", "2 renamed"])
def test_a_stored_model_and_remembered_bytes_stay_on_replay(flows, place):
    run = flows.broken(STORES, QUIET, place=place)
    seen = flows.seen()
    resumed = flows.resume(run, STORES, QUIET)
    assert flows.seen()[: len(seen)] == seen
    stored = [each for each in records(resumed.finished()) if each.name == "store"]
    assert [each.model.round for each in stored] == [1, 2]
    final = load_file(resumed.directory.final_model)
    mine = load_file(resumed.directory.path / "mine-2.safetensors")
    assert final.keys() == mine.keys()
    assert all(bool((final[name] == mine[name]).all()) for name in final)
    assert resumed.summary.best is not None
    assert not [each for each in resumed.summary.warnings if "not made by this run" in each]


def test_a_file_that_is_no_such_model_is_refused(flows):
    text = """
    from safetensors.torch import save_file
    import torch
    save_file({"other": torch.zeros(2)}, HERE / "other.safetensors")
    (HERE / "none.safetensors").write_bytes(b"nothing")
    refused(
        run,
        [
            'run.store(model, HERE / "other.safetensors")',
            'run.store(model, HERE / "none.safetensors")',
            'run.remember("x", lambda: 1)',
        ],
        model=model, HERE=HERE,
    )
    model = run.fold(model, run.train(model, run.sites))
    """
    flows.finish(text, "rounds=1", QUIET)
    sentences = list(flows.sentences().values())
    assert "does not fit the run's model: " in sentences[0][0]
    assert "that is no model: " in sentences[1][0]
    assert "computed what is no bytes" in sentences[2][0]


def test_a_file_of_an_update_that_was_saved_stays_as_it_is_on_replay(flows):
    text = """
    updates = run.train(model, run.sites)
    run.save(updates[0], run_folder() / f"mine-{number}.safetensors")
    model = run.fold(model, updates)
    """
    run = flows.finish(text, QUIET, "rounds=1")
    (run.directory.path / "mine-1.safetensors").unlink()
    longer = flows.resume(run, text, QUIET, "rounds=2")
    assert [path.name for path in longer.directory.path.glob("mine-*")] == ["mine-2.safetensors"]
