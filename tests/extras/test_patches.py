"""What the patches of both libraries have in common: scores, states, models of a site's own."""

import pytest
import torch
from nightly_cases import first_and_nightly
from patched_jobs import (
    ADAPTED,
    HF,
    LIBRARIES,
    LIT,
    NET,
    SHARED,
    bits,
    failure,
    finished,
    losses,
    same,
)
from safetensors.torch import load_file
from training_scripts import kills_site, of_kind

from flstream.telemetry.events import ModelsCollected, ModelScored, SiteUpdate

ALL = pytest.mark.parametrize("library", LIBRARIES)


@ALL
def test_scored_or_not_and_in_whatever_process_the_model_is_the_same(jobs, library):
    case = LIBRARIES[library]
    scored = finished(jobs, case.script(), "clients.count=2")
    first, second = losses(scored, case)
    assert second < first
    script = case.script(loop=case.unscored).replace("flstream.client", "nvflare.client")
    other = finished(jobs, script, *SHARED, "train.alias=nvflare")
    assert same(bits(scored), bits(other))


@ALL
@pytest.mark.parametrize("how", [(), SHARED])
def test_a_trainer_leaves_the_task_to_submit_a_model_and_scores_the_others(jobs, library, how):
    case = LIBRARIES[library]
    train = case.unscored.replace("    trainer", "    if not flare.is_evaluate(): trainer", 1)
    script = case.script(loop=f"{train}    if flare.is_evaluate():\n    {case.scores}")
    args = f"args{{key_metric={case.loss}, key_metric_mode=min}}"
    how = [*(how or ["clients.count=2"]), f"workflow=[{{{args}}}, {{type=cross_site, {args}}}]"]
    run = finished(jobs, script, *how)
    [collected] = of_kind(run, ModelsCollected)
    assert (collected.sites, collected.failures) == (["site-1", "site-2"], {})
    assert (run.summary.evaluate, run.summary.warnings) == ("task", [])
    assert {each.sites for each in of_kind(run, ModelScored)} == {2}


@ALL
def test_a_tensor_of_the_sites_own_stays_there(jobs, library):
    how = 'workflow={type=fedper, args{personal=["bias"]}}'
    run = finished(jobs, LIBRARIES[library].script(), how)
    first, last = load_file(run.directory.checkpoint(0)), load_file(run.directory.final_model)
    assert {key for key in first if torch.equal(first[key], last[key])} == {"layer.bias"}
    kept = run.directory.path.glob("sites/*/state/*/.flstream/personal.safetensors")
    assert not any(torch.equal(load_file(path)["layer.bias"], first["layer.bias"]) for path in kept)


@ALL
def test_the_job_overrules_what_a_script_says_of_optimizer_states(jobs, plain, library):
    case = LIBRARIES[library]
    anew = case.script(case.patch.replace("patch(trainer)", "patch(trainer, restore_state=False)"))
    local = finished(jobs, anew, "train.optimizer_state=local")
    assert same(bits(local), plain(library))
    reset = finished(jobs, case.script(), "train.optimizer_state=reset")
    assert same(bits(reset), bits(finished(jobs, anew)))
    assert not same(bits(local), bits(reset))


# The loss has FedProx's term, to which the patch adds nothing.
LIT_TERM = """
Module.training_step = lambda self, batch: self.loss(batch) + flare.proximal_term(self)
"""
HF_TERM = """
loss_of = transformers.Trainer.compute_loss

def with_term(self, model, inputs, return_outputs=False, **how):
    loss = loss_of(self, model, inputs, return_outputs, **how)
    return loss if return_outputs else loss + term_of(model)

transformers.Trainer.compute_loss = with_term
term_of = flare.proximal_term
"""
# An adapter's parameters have other names than its tensors on the server.
ADAPTER_TERM = f"""
{HF_TERM}
starts = {{}}

def term_of(model):
    number = flare.receive().current_round
    if number not in starts:
        starts[number] = {{name: each.detach().clone() for name, each in model.named_parameters()}}
    return flare.proximal_term(model, starts[number], 5.0)
"""
HF_CLIPS = "build(), optim='sgd', max_grad_norm=0.1"
HF_SUMS = "build(), optim='sgd', max_grad_norm=0, gradient_accumulation_steps=3"
FEDPROX = "workflow.args.fedprox_mu=5"
# A model, its library, the term in its loss, and the arguments of its trainer.
TERMS = {
    "lightning": (NET, LIT, LIT_TERM, "gradient_clip_val=0.1"),
    "hf": (NET, HF, HF_TERM, HF_CLIPS),
    "hf, an adapter": (ADAPTED, HF, ADAPTER_TERM, HF_CLIPS),
    "lightning, sums": (NET, LIT, LIT_TERM, "accumulate_grad_batches=3"),
    "hf, sums": (NET, HF, HF_TERM, HF_SUMS),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_patch_trains_as_a_loss_with_the_term_of_fedprox(jobs, name):
    model, case, term, how = TERMS[name]

    def trained(term):
        trainer = f"trainer = trainer_of({how})\nflare.patch(trainer)"
        script = case.script(f"from model import build\n{term}\n{trainer}")
        run = finished(jobs, script, FEDPROX, model=model)
        assert run.summary.warnings == []
        return bits(run)

    found, due = trained(""), trained(term)
    # Clipped, a term that came later would be too large. Summed over the batches of a step, a term
    # in the loss of each rounds otherwise than one for all of them.
    is_same = torch.allclose if "sums" in name else torch.equal
    assert all(is_same(each, due[key]) for key, each in found.items())


OF_NET = {"hf": "net = trainer.model", "lightning": "net = module"}
TORCHRUN = 'train.command="torchrun --nproc_per_node=2"'
PATCHES = {
    "hf": HF.patch,
    "lightning": LIT.patch.replace("()", "(accelerator='cpu', devices=2, strategy='ddp')", 1),
}
# The weights of all ranks at the end of a task, as text in a file of each.
WEIGHTS = """
    import torch.distributed as dist
    weights = [each.tolist() for each in net.parameters()]
    with open(f"rank-{dist.get_rank()}", "a") as file:
        print(weights, file=file)
"""


def of_ranks(jobs, library, patch, **model):
    """A run in two ranks, which end each of two tasks with the same weights."""
    case = LIBRARIES[library]
    script = case.script(f"{patch}\n{OF_NET[library]}", case.loop + WEIGHTS)
    run = finished(jobs, script, TORCHRUN, **model)
    work = run.directory.site("site-1") / "work"
    first, other = (work.joinpath(f"rank-{rank}").read_text() for rank in range(2))
    assert first == other
    assert len(set(first.splitlines())) == 2
    return run


@first_and_nightly(("library", "weight"), [("lightning", 3), ("hf", 12)])
def test_ranks_end_each_task_with_the_same_weights(jobs, library, weight):
    run = of_ranks(jobs, library, PATCHES[library])
    assert {each.weight for each in of_kind(run, SiteUpdate)} == {weight}


ACCELERATE = 'train.command="accelerate launch --multi_gpu --num_processes=2"'


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("library", "command"), [("lightning", TORCHRUN), ("hf", TORCHRUN), ("hf", ACCELERATE)]
)
def test_ranks_come_to_the_same_bits_again_and_after_a_kill(jobs, library, command):
    two = "\nassert torch.distributed.get_world_size() == 2"
    script = LIBRARIES[library].script(PATCHES[library], LIBRARIES[library].loop + two)
    how = ("rounds=3", command)
    first, again = (bits(finished(jobs, script, *how)) for _ in range(2))
    how = ("clients.count=1", *how)
    killed = jobs.run(script, *how, model=NET, listener=kills_site(2))
    assert killed.summary.status == "failed"
    resumed = bits(jobs.go_on(killed, script, *how, model=NET))
    assert same(first, again)
    assert same(first, resumed)


@pytest.mark.nightly
def test_an_adapter_reaches_all_ranks(jobs):
    patch = "from model import build\n" + HF.patch.replace("Net()", "build()")
    of_ranks(jobs, "hf", patch, model=ADAPTED)


@pytest.mark.nightly
def test_the_gradient_of_two_ranks_is_that_of_their_batches_together(jobs):
    """Of all examples in a step, the order of which is of no account; FedProx's counts once."""
    how = "per_device_train_batch_size=12, num_train_epochs=3, optim='sgd'"
    one = HF.patch.replace("Net()", f"Net(), {how}")
    alone = bits(finished(jobs, HF.script(one), 'train.command="python3 -u"', FEDPROX))
    together = bits(finished(jobs, HF.script(one.replace("=12", "=6")), TORCHRUN, FEDPROX))
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor)


@pytest.mark.nightly
@pytest.mark.parametrize(("devices", "how"), [(2, []), (1, [TORCHRUN])])
def test_a_trainer_has_as_many_processes_as_its_site(jobs, devices, how):
    patch = LIT.patch.replace("()", f"(accelerator='cpu', devices={devices})", 1)
    reason = failure(jobs, LIT.script(patch, ""), *how)
    assert f"the trainer has {devices} process" in reason
    assert f"and this site has {3 - devices}; make it with devices={3 - devices}" in reason
