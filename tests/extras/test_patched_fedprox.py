"""A patched trainer trains as one whose loss has FedProx's term."""

import pytest
import torch
from patched_jobs import HF, HF_LOOP, LIT, LIT_LOOP, bits, finished
from safetensors.torch import load_file

# The loss has the term, to which the patch adds nothing.
LIT_TERM = """
Module.training_step = lambda self, batch: self.loss(batch) + flare.proximal_term(self)
"""
HF_TERM = """
def compute_loss(self, model, inputs, return_outputs=False, loss=transformers.Trainer.compute_loss, **how):
    found = loss(self, model, inputs, return_outputs, **how)
    return found if return_outputs else found + TERM(model)

transformers.Trainer.compute_loss = compute_loss
TERM = flare.proximal_term
"""
# An adapter's parameters have other names than its tensors on the server.
ADAPTER_TERM = (
    HF_TERM
    + """
def TERM(model):
    start = vars(model).setdefault("start", {})
    start.setdefault(flare.receive().current_round, {
        name: each.detach().clone() for name, each in model.named_parameters()
    })
    return flare.proximal_term(model, start[flare.receive().current_round], 5.0)
"""
)
ADAPTED = """
import peft
net = peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["layer"]))
"""
FEDPROX = "workflow.args.fedprox_mu=5"
DITTO = "workflow={type=ditto, args{ditto_lambda=5}}"


def trainer(of: str, how: str) -> str:
    return f"trainer = trainer_of({of}{how})\nflare.patch(trainer)\n"


# Library, loss with the term, trainer, loop, and what the job says. Gradients are clipped, where a
# term that came later would be too large; or summed over batches.
SGD = "optim='sgd', max_grad_norm=0.1"
CASES = {
    "lightning": (LIT, LIT_TERM, trainer("", "gradient_clip_val=0.1"), LIT_LOOP, FEDPROX),
    "hf": (HF, HF_TERM, trainer("Net(), ", SGD), HF_LOOP, FEDPROX),
    "adapter": (HF, ADAPTER_TERM, ADAPTED + trainer("net, ", SGD), HF_LOOP, FEDPROX),
    "lightning, a model beside": (
        LIT,
        LIT_TERM,
        trainer("", "accumulate_grad_batches=3"),
        LIT_LOOP,
        DITTO,
    ),
    "hf, a model beside": (
        HF,
        HF_TERM,
        trainer("Net(), ", "optim='sgd', gradient_accumulation_steps=3"),
        HF_LOOP,
        DITTO,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_patch_trains_as_a_loss_with_the_term(jobs, case):
    library, term, head, loop, prox = CASES[case]

    def trained(middle, how):
        run = finished(jobs, library, middle, loop, how)
        assert run.summary.warnings == []
        beside = sorted(run.directory.path.glob("sites/*/state/*/.flstream/beside.safetensors"))
        return load_file(beside[-1]) if beside else bits(run)

    found, due = trained(head, prox), trained(term + head, prox)
    without = trained(head, prox.replace("=5", "=0"))
    for name, each in found.items():
        # A term for each batch of a step rounds otherwise than one for all of them.
        exact = prox == FEDPROX
        assert torch.equal(each, due[name]) if exact else torch.allclose(each, due[name], atol=1e-6)
    assert any((each - without[name]).abs().max() > 1e-3 for name, each in found.items())
