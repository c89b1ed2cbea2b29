"""A patched trainer trains as one whose loss has FedProx's term."""

import pytest
import torch
from patched_jobs import ADAPTED, HF, LIT, NET, bits

# The loss has the term, to which the patch adds nothing.
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
FEDPROX = "workflow.args.fedprox_mu=5"


def trainer(how: str) -> str:
    return f"trainer = trainer_of({how})\nflare.patch(trainer)\n"


LIT_CLIPS = trainer("gradient_clip_val=0.1")
LIT_SUMS = trainer("accumulate_grad_batches=3")
HF_CLIPS = trainer("build(), optim='sgd', max_grad_norm=0.1")
HF_SUMS = trainer("build(), optim='sgd', max_grad_norm=0, gradient_accumulation_steps=3")
# The model, the script without and with the term in its loss, and what the job says.
CASES = {
    "lightning": (NET, LIT.head, LIT_TERM, LIT_CLIPS + LIT.loop, FEDPROX),
    "hf": (NET, HF.head, HF_TERM, HF_CLIPS + HF.loop, FEDPROX),
    "hf, an adapter": (ADAPTED, HF.head, ADAPTER_TERM, HF_CLIPS + HF.loop, FEDPROX),
    "lightning, sums": (NET, LIT.head, LIT_TERM, LIT_SUMS + LIT.loop, FEDPROX),
    "hf, sums": (NET, HF.head, HF_TERM, HF_SUMS + HF.loop, FEDPROX),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_patch_trains_as_a_loss_with_the_term(jobs, case):
    model, library, term, loop, prox = case

    def trained(middle):
        script = library + "from model import build\n" + middle + loop
        run = jobs.run(script, "clients.count=1", prox, model=model)
        assert (run.summary.status, run.summary.warnings) == ("finished", []), run.summary.error
        return bits(run)

    found, due = trained(""), trained(term)
    for name, each in found.items():
        # Clipped, a term that came later would be too large. Summed over the batches of a step, a
        # term in the loss of each rounds otherwise than one for all of them.
        is_same = (
            torch.allclose if loop in (LIT_SUMS + LIT.loop, HF_SUMS + HF.loop) else torch.equal
        )
        assert is_same(each, due[name])
