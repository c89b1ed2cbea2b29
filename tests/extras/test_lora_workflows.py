"""Workflows of LoRA adapters with PEFT around a GPT-2, whose layers are of transformers' Conv1D."""

import json

import pytest
from training_scripts import of_kind

from flstream.inspection.export import export
from flstream.telemetry.events import SiteLog, SiteUpdate

MODEL = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import flstream.client as flare

SIZE = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 50}
LAYERS = ["c_attn", "c_fc"]


def base():
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(**SIZE, bos_token_id=0, eos_token_id=0))


def build(rank, alpha=None):
    alpha = alpha or 2 * rank
    config = LoraConfig(r=rank, lora_alpha=alpha, fan_in_fan_out=True, target_modules=LAYERS)
    return get_peft_model(flare.base_model(), config)


def tokens_of(index):
    return torch.randint(0, 50, (4, 16), generator=torch.Generator().manual_seed(index))
"""
SCRIPT = """
import torch
from model import build, tokens_of
from peft import get_peft_model_state_dict, set_peft_model_state_dict

import flstream.client as flare

flare.init()
info = flare.system_info()
most = info["model_args"]["rank"]
rank = info["site_args"].get("rank", most)
net, tokens = build(rank), tokens_of(info["site_index"])
own = [tensor for tensor in net.parameters() if tensor.requires_grad]
while flare.is_running():
    model = flare.receive()
    set_peft_model_state_dict(net, flare.to_rank(model.params, rank))
    if flare.is_evaluate():
        loss = net.eval()(input_ids=tokens, labels=tokens).loss.item()
        flare.send(flare.FLModel(metrics={"loss": loss}))
        continue
    net.train()
    optimizer = torch.optim.AdamW(own, lr=2e-2)
    for _ in range(4):
        optimizer.zero_grad()
        net(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    params = flare.to_rank(get_peft_model_state_dict(net), most)
    flare.send(flare.FLModel(params=params, meta={"num_examples": 1 + info["site_index"]}))
"""
UNEQUAL = "clients.args={site-1 {rank=4}, site-2 {rank=8}, site-3 {rank=16}}"
UNEQUAL_8 = ["clients.args={site-2 {rank=8}}"]
HOW = ["clients.count=3", 'model.base="model:base"', "model.args.rank=16", "rounds=3"]


def is_what_sites_scored(folder, exported, losses):
    """The exported adapter has the scores of the sites, in PEFT around a base of one's own."""
    import sys

    import torch
    from peft import PeftModel

    sys.path.insert(0, str(folder))
    from model import base, tokens_of

    own = base()
    if (exported / "base.safetensors").exists():
        from safetensors.torch import load_file

        assert not own.load_state_dict(load_file(exported / "base.safetensors"), strict=False)[1]
        before, now = (net.transformer.h[0].attn.c_attn.weight for net in (base(), own))
        assert before.ne(now).any()
    net = PeftModel.from_pretrained(own, exported).eval()
    for index, due in losses.items():
        tokens = tokens_of(index)
        with torch.no_grad():
            loss = net(input_ids=tokens, labels=tokens).loss.item()
        assert loss == pytest.approx(due, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "into", "ranks"),
    [
        ("fedex", "", []),
        ("flora", "", [UNEQUAL]),
        ("hlora", "", [UNEQUAL]),
        ("fedex", "into=base", []),
        ("flora", "into=base", [UNEQUAL]),
    ],
)
def test_an_adapter_and_its_residual_open_in_peft_as_sites_scored_them(
    jobs, libraries, tmp_path, kind, into, ranks
):
    how = [*HOW, *ranks, f"workflow={{type={kind}, args{{key_metric=loss, {into}}}}}"]
    run = jobs.run(SCRIPT, *how, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    assert not run.summary.warnings
    logged = {event.key: event.value for event in of_kind(run, SiteLog) if event.round == 1}
    assert logged.get("residual_squared", logged.get("product_squared")) > 0
    assert (logged["lost_squared"] == 0) == (kind != "hlora")
    exported = tmp_path / "exported"
    export(run.directory.path, exported)
    config = json.loads((exported / "adapter_config.json").read_text())
    # A layer of 32 inputs has no residual above that.
    held = 16 if kind == "hlora" or into else 16 + 32
    assert (config["r"], config["lora_alpha"]) == (held, 2 * held)
    scored = run.summary.metrics[-1]["sites"]
    # A site of a smaller rank scores as much of hlora's model as it holds.
    places = [2] if kind == "hlora" else [0, 1, 2]
    losses = {place: scored[f"site-{place + 1}"]["loss"] for place in places}
    libraries(is_what_sites_scored, jobs.folder, exported, losses)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("flare.to_rank(model.params, rank)", "flare.to_rank(model.params, 0)", "the rank 0"),
        ("flare.to_rank(model.params, rank)", "flare.to_rank({}, 1)", "no LoRA factors"),
        ("net, tokens = build(rank)", "net, tokens = build(rank, 32)", "of its factors by 4 (lora"),
    ],
)
def test_a_mistake_with_ranks_is_the_sentence_of_its_site(jobs, before, after, sentence):
    script = SCRIPT.replace(before, after)
    how = [*HOW, *UNEQUAL_8, "rounds=1", "workflow.type=hlora"]
    run = jobs.run(script, *how, model=MODEL)
    assert run.summary.status == "failed"
    assert sentence in run.summary.error


def test_fedex_folds_with_patterns_of_the_factors_alone(jobs):
    how = [*HOW, "rounds=1", "workflow.type=fedex"]
    whole = jobs.run(SCRIPT, *how, model=MODEL)
    run = jobs.run(SCRIPT, *how, "aggregation.include=[lora_]", model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.model.digest == whole.summary.model.digest
    half = jobs.run(SCRIPT, *how, "aggregation.exclude=[lora_A]", model=MODEL)
    assert "aggregate both (aggregation.include)" in half.summary.error
    assert not of_kind(half, SiteUpdate)


INTO_BASE = [*HOW, "model.args.rank=4", "workflow={type=fedex, args{key_metric=loss, into=base}}"]


def test_a_run_that_adds_to_its_base_resumes_wherever_it_was_cut_off(jobs):
    run = jobs.run(SCRIPT, *INTO_BASE, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    journal, digest = run.directory.events, run.summary.model.digest
    lines = journal.read_bytes().splitlines(keepends=True)
    effects = [place for place, line in enumerate(lines) if b'"kind":"effect"' in line]
    assert len(effects) == 3 * 3  # fold, merge and evaluate
    for number in (1, 4, 5, 8):
        journal.write_bytes(b"".join(lines[: effects[number - 1] + 1]))
        resumed = jobs.go_on(run, SCRIPT, *INTO_BASE, model=MODEL)
        assert resumed.summary.status == "finished", resumed.summary.error
        assert resumed.summary.model.digest == digest
    back = jobs.go_on(run, SCRIPT, *INTO_BASE, model=MODEL, from_round=1)
    assert back.summary.model.digest == digest


def test_the_bases_of_earlier_rounds_go_with_their_models_and_processes_end_in_equal_bits(jobs):
    how = [*INTO_BASE, "checkpoints.keep=1"]
    inline = jobs.run(SCRIPT, *how, model=MODEL)
    assert inline.summary.status == "finished", inline.summary.error
    present = {path.name for path in inline.directory.checkpoints.iterdir()}
    bases = {name for name in present if name.endswith(".base.safetensors")}
    assert {name[:10] for name in bases} == {"round-0001", "round-0003"}  # the best, and the last
    assert {name.replace(".base", "") for name in bases} <= present
    digests = {inline.summary.model.digest}
    for more in ("clients.parallel=1", "clients.parallel=3"):
        run = jobs.run(SCRIPT, *how, more, "engine.type=local", model=MODEL)
        assert run.summary.status == "finished", run.summary.error
        digests.add(run.summary.model.digest)
    assert len(digests) == 1


WRONG = """

def factors(rank):
    net = build(rank)
    return {name: value for name, value in get_peft_model_state_dict(net).items()}
"""


@pytest.mark.parametrize(
    ("model", "factory", "sentence"),
    [
        (
            MODEL.replace("import LoraConfig,", "import get_peft_model_state_dict, LoraConfig,")
            + WRONG,
            "model:factors",
            "no adapter of PEFT",
        ),
        (MODEL.replace("r=rank,", "r=rank, alpha_pattern={'c_fc': 3},"), "model:build", "scalings"),
    ],
)
def test_an_adapter_that_cannot_be_added_to_the_base_is_a_sentence(jobs, model, factory, sentence):
    run = jobs.run(SCRIPT, *INTO_BASE, f"model.factory={factory}", model=model)
    assert run.summary.status == "failed"
    assert sentence in run.summary.error
