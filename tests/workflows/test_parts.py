"""Trainings of parts of a model: what sites are sent, and what they send back."""

import textwrap

import pytest
import torch
from safetensors.torch import load_file
from training_scripts import QUIET, results

FACTORY = 'model={factory="parts.py:build"}'
PROCESSES = "engine.type=local"
# The model of a site of its own: it takes what it receives, adds to all of it, and keeps it.
REPLICA = """
import json
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": 0.0}))
        continue
    path = flare.get_state_dir() / "replica.pt"
    received = {name: tensor.clone() for name, tensor in model.params.items()}
    try:
        replica = torch.load(path, weights_only=True)
    except FileNotFoundError:
        replica = {}
    replica |= received
    for name, tensor in replica.items():
        if tensor.is_floating_point():
            replica[name] = tensor + torch.randn(tensor.shape).to(tensor.dtype)
    torch.save(replica, path)
    index = int(flare.get_site_name().rpartition("-")[2])
    metrics = {name: 1.0 for name in received}
    params = dict(replica)
    # LATE
    flare.send(flare.FLModel(params=params, metrics=metrics, meta={"num_examples": index}))
"""
MODEL = """
import torch

def build(elements: int = 8):
    torch.manual_seed(1)
    names = ["embed.weight", *(f"blocks.{i}.weight" for i in range(5)), "head.bias"]
    return {name: torch.randn(elements) for name in names}
"""


@pytest.fixture
def parted(flows):
    """Runs of workflows on a model of seven tensors, at sites that keep it."""
    (flows.jobs.folder / "parts.py").write_text(textwrap.dedent(MODEL))

    def run(text, *overrides, script=REPLICA):
        return flows.finish(text, QUIET, FACTORY, *overrides, script=script)

    return run


def models(run, rounds):
    return [
        load_file(run.directory.checkpoints / f"round-{number:04d}.safetensors")
        for number in range(rounds + 1)
    ]


BLOCKS = r"""
if number == 1:
    updates = run.train(model, run.sites, send=[r"blocks\.[01]\..*"])
else:
    updates = run.train(model, run.sites, receive=[r"blocks\.[01]\.weight"], send=["head.bias"])
if {is_read}:
    see([sorted(update.metrics) for update in updates])
model = run.fold(model, updates)
"""


@pytest.mark.parametrize(
    ("workers", "is_read"),
    [([], False), ([], True), ([PROCESSES], False), ([PROCESSES, "clients.parallel=1"], True)],
)
def test_sites_are_sent_some_tensors_and_send_others_back(parted, flows, workers, is_read):
    run = parted(BLOCKS.format(is_read=is_read), "rounds=2", "clients.count=3", *workers)
    first, second, third = models(run, 2)
    changed = {name for name in first if not torch.equal(first[name], second[name])}
    assert changed == {"blocks.0.weight", "blocks.1.weight"}
    changed = {name for name in first if not torch.equal(second[name], third[name])}
    assert changed == {"head.bias"}
    if is_read:
        of_round_2 = eval(flows.seen()[1])
        assert of_round_2 == [["blocks.0.weight", "blocks.1.weight"]] * 3


LATE = REPLICA.replace(
    "    torch.save(",
    """    from flstream.client.session import current
    for name, tensor in (current().turn.late() or {}).items():
        replica[name] = 0.25 * replica[name] + 0.75 * tensor
    torch.save(""",
)
OVERLAPPED = """
def flow(run):
    model, parts = run.initial_model(), run.partition(3)
    for number in run.rounds():
        part = parts[(number - 1) % 3]
        if number == 1:
            for site in run.sites:
                run.start(site, model, send=[part])
        answers = [run.next() for _ in run.in_flight]
        answers.sort(key=lambda answer: answer.site)
        for site in run.sites:
            run.start(site, model, receive=[], send=[parts[number % 3]], late=[part])
        break_off(f"before fold {number}")
        model = run.fold(model, answers)
        break_off(f"after fold {number}")
    return model
"""


THREE = ["rounds=5", "clients.count=3"]


@pytest.mark.parametrize("place", ["before fold 1", "after fold 3", "before fold 5"])
def test_a_run_with_late_tensors_that_is_broken_off_ends_in_the_same_bits(parted, flows, place):
    whole = parted(OVERLAPPED, *THREE, script=LATE)
    settings = QUIET, FACTORY, *THREE
    broken = flows.broken(OVERLAPPED, *settings, script=LATE, place=place)
    again = flows.resume(broken, OVERLAPPED, *settings, script=LATE)
    assert results(again) == results(whole)


CODED = """
def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        receive = None if number == 1 else [r"blocks.*"]
        updates = run.train(model, run.sites, receive=receive, send=[r"blocks\\.[0-3].*"])
        model = run.fold(model, updates)
    return model
"""


@pytest.mark.parametrize(
    "codecs",
    [
        "up=[{type=int8}]",
        "up=[{type=topk, args={fraction=0.25}}]",
        "up=[delta, shuffle, zstd], down=[delta, shuffle, zstd]",
        "down=[{type=cast, args={to=bf16}}]",
    ],
)
def test_parts_of_models_pass_codecs_to_the_same_bits_anywhere(parted, codecs):
    settings = ["rounds=3", "clients.count=3", f"streaming.codecs={{{codecs}}}"]
    inline = parted(CODED, *settings)
    other = parted(CODED, *settings, PROCESSES, "clients.parallel=1")
    assert results(other) == results(inline)


def test_an_exact_codec_leaves_the_bits_of_parts(parted):
    settings = ["rounds=3", "clients.count=2"]
    exact = "streaming.codecs={up=[delta, shuffle, zstd], down=[delta, shuffle, zstd]}"
    assert results(parted(CODED, *settings, exact)) == results(parted(CODED, *settings))


STALE = """
def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        if number == 1:
            updates = run.train(model, run.sites, send={first})
        else:
            updates = run.train(model, run.sites, receive=["head.bias"], send=[r"blocks.0.*"])
        model = run.fold(model, list(updates), {rule})
    return model
"""
# Each site answers with what it has, and adds its number to each tensor that it holds.
ADDING = REPLICA.replace("torch.randn(tensor.shape).to(tensor.dtype)", "0.0").replace(
    "    params = dict(replica)\n",
    "    params = {name: tensor + index for name, tensor in replica.items()}\n",
)


OWN = 'FoldRule(1.0, normalise=True, base="own")'


def test_a_tensor_is_compared_with_what_its_site_received_last(parted):
    text = STALE.format(first=None, rule=OWN)
    run = parted(text, "rounds=3", "clients.count=2", script=ADDING)
    first, second, third, fourth = models(run, 3)
    # Both sites keep block 0 as they received it at first, and add 1 and 2 to it: so each round's
    # mean difference is 1.5, whatever the fold before has made of that block.
    for before, after in ((second, third), (third, fourth)):
        torch.testing.assert_close(after["blocks.0.weight"], before["blocks.0.weight"] + 1.5)
    assert torch.equal(third["head.bias"], second["head.bias"])
    torch.testing.assert_close(second["head.bias"], first["head.bias"] + 1.5)


def test_a_model_stays_on_disk_while_a_site_has_tensors_of_it_that_have_changed(parted):
    text, settings = STALE.format(first=[".*"], rule=OWN), ["rounds=4", "clients.count=2"]
    all_kept = parted(text, *settings, script=ADDING)
    few = parted(text, *settings, "checkpoints.keep=1", script=ADDING)
    assert results(few) == results(all_kept)


def test_a_model_that_has_gone_is_named_where_a_site_has_tensors_of_it(parted, flows):
    text, settings = STALE.format(first=None, rule=OWN), ["rounds=2", "checkpoints.keep=1"]
    run = flows.run(text, QUIET, FACTORY, *settings, script=ADDING)
    assert run.summary.status == "failed"
    assert "'blocks.0.weight' of model 0" in run.summary.error
    assert "checkpoints.keep" in run.summary.error


FAILING = """
if number == 1:
    updates = run.train(model, run.sites)
else:
    updates = run.train(model, run.sites, min_updates=1, receive=["head.bias"], send=["head.*"])
see([(update.site, sorted(update.metrics)) for update in updates])
model = run.fold(model, list(updates))
"""


def test_a_site_that_has_failed_begins_anew_with_the_whole_model(parted, flows):
    fails = REPLICA.replace(
        "    if flare.is_evaluate():",
        "    if model.current_round == 1 and flare.get_site_name() == 'site-2':\n"
        "        raise RuntimeError('lost')\n"
        "    if flare.is_evaluate():",
    ).replace("replica |= received", "print('has', len(replica)); replica |= received")
    parted(FAILING, "rounds=3", "clients.count=2", PROCESSES, script=fails)
    second, third = map(eval, flows.seen()[1:])
    assert second == [("site-1", ["head.bias"])]
    assert dict(third)["site-1"] == ["head.bias"]
    assert len(dict(third)["site-2"]) == 7


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ('run.train(model, run.sites, send=["blocks"])', "matches no whole name of a tensor"),
        ('run.train(model, run.sites, receive=["nothing.*"])', "'nothing.*'"),
        ('run.train(model, run.sites, send=["["])', "no regular expression"),
        ('run.train(model, run.sites, send="head.bias")', "give it a list"),
        ("run.train(model, run.sites, send=[])", "nothing would be folded"),
        ("run.train(model, run.sites, send=run.partition(9))", "9 parts, and has 7 layers"),
        ("run.train(model, run.sites, send=[3])", "give it a list"),
        ("run.train(model, run.sites, send=run.partition(2)[0])", "give it a list"),
        ("run.train(model, run.sites, recieve=[])", "did you mean receive?"),
        ("run.train(model)", "missing a required argument: 'sites'"),
        ("run.partition(0)", "a number of parts"),
        ('run.partition(2, "middle")', "knows the orders strided and in_order"),
    ],
)
def test_mistakes_of_parts_are_named(parted, flows, call, words):
    text = f"""
    updates = {call}
    model = run.fold(model, updates)
    """
    run = flows.run(text, QUIET, FACTORY, "rounds=1", "clients.count=2", script=REPLICA)
    assert run.summary.status == "failed"
    assert words in run.summary.error


def test_nobody_waits_for_late_tensors_of_a_model_that_is_not_made(parted, flows):
    text = """
    run.start("site-1", model, late=["head.bias"])
    run.next()
    """
    run = flows.run(text, QUIET, FACTORY, "rounds=1", "clients.count=2", script=REPLICA)
    assert run.summary.status == "failed"
    assert "call run.fold() first" in run.summary.error


AFTER_WHOLE = """
if number == 1:
    updates = run.train(model, run.sites)
else:
    updates = run.train(model, run.sites, receive=["head.bias"], send=["head.bias"])
model = run.fold(model, updates)
"""


def test_codecs_that_compare_need_send_in_the_training_before(parted, flows):
    parted(AFTER_WHOLE, "rounds=2", "clients.count=2")
    codec = "streaming.codecs.up=[int8]"
    settings = [QUIET, FACTORY, "rounds=2", "clients.count=2", codec]
    run = flows.run(AFTER_WHOLE, *settings, script=REPLICA)
    assert run.summary.status == "failed"
    assert "keeps no file for streaming.codecs to compare with" in run.summary.error


def test_late_tensors_that_no_code_takes_fail_the_site(parted, flows):
    run = flows.run(OVERLAPPED, QUIET, FACTORY, *THREE, script=REPLICA)
    assert run.summary.status == "failed"
    assert "has no update" in run.summary.error or "without them" in run.summary.error
