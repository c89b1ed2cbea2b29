"""Patched trainers in the two processes that a site's command starts: trained as one."""

import pytest
import torch
from patched_jobs import HF, HF_LOOP, LIT, LIT_LOOP, NET, bits, events, failure, finished, same

from flstream.telemetry.events import SiteUpdate

TORCHRUN = 'train.command="torchrun --nproc_per_node=2"'
HF_PATCH = "trainer = trainer_of(Net())\nflare.patch(trainer)\nnet = trainer.model\n"
LIT_PATCH = (
    "trainer = trainer_of(accelerator='cpu', devices=2, strategy='ddp')\n"
    "flare.patch(trainer)\nnet = module\n"
)
# The weights of all ranks at the end of a task, as text in a file of each.
WEIGHTS = """
    import torch.distributed as dist
    weights = [each.tolist() for each in net.parameters()]
    with open(f"rank-{dist.get_rank()}", "a") as file:
        print(weights, file=file)
"""


@pytest.mark.parametrize(
    ("head", "patch", "loop", "weight"),
    [(HF, HF_PATCH, HF_LOOP, 12), (LIT, LIT_PATCH, LIT_LOOP, 3)],
    ids=["hf", "lightning"],
)
def test_ranks_end_each_task_with_the_same_weights(jobs, head, patch, loop, weight):
    loop += WEIGHTS
    found = finished(jobs, head, patch, loop, TORCHRUN)
    work = found.directory.site("site-1") / "work"
    first, other = (work.joinpath(f"rank-{rank}").read_text() for rank in range(2))
    assert first == other
    assert len(set(first.splitlines())) == 2
    assert [each.weight for each in events(found, SiteUpdate)] == [weight, weight]
    assert same(bits(found), bits(finished(jobs, head, patch, loop, TORCHRUN)))


def test_the_gradient_of_two_ranks_is_that_of_their_batches_together(jobs):
    """Of all examples in a step, the order of which is of no account; FedProx's counts once."""
    how = "per_device_train_batch_size=12, num_train_epochs=3, optim='sgd'"
    one, prox = HF_PATCH.replace("Net()", f"Net(), {how}", 1), "workflow.args.fedprox_mu=5"
    two = one.replace("=12", "=6")
    alone = bits(finished(jobs, HF, one, HF_LOOP, 'train.command="python3 -u"', prox))
    together = bits(finished(jobs, HF, two, HF_LOOP, TORCHRUN, prox))
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor)


def test_an_adapter_reaches_all_ranks(jobs):
    """Its base, which is not exchanged, is made by each of them."""
    adapted = NET.replace(
        "    return Net(dtype)",
        "    from peft import LoraConfig, get_peft_model\n"
        "    torch.manual_seed(0)\n"
        "    return get_peft_model(Net(dtype), LoraConfig(r=1, target_modules=['layer']))",
    )
    head = HF.replace("from model import Net, Points", "from model import build, Points")
    patch = HF_PATCH.replace("Net()", "build()", 1)
    found = jobs.run(head + patch + HF_LOOP + WEIGHTS, "clients.count=1", TORCHRUN, model=adapted)
    assert found.summary.status == "finished", found.summary.error
    work = found.directory.site("site-1") / "work"
    first, other = (work.joinpath(f"rank-{rank}").read_text() for rank in range(2))
    assert first == other


@pytest.mark.parametrize(
    ("head", "middle", "how", "reason"),
    [
        (
            LIT,
            "trainer = trainer_of(accelerator='cpu', devices=2)\nflare.patch(trainer)",
            [],
            "the trainer has 2 processes, and this site has 1; make it with devices=1",
        ),
        (
            LIT,
            "trainer = trainer_of(accelerator='cpu', devices=1)\nflare.patch(trainer)",
            [TORCHRUN],
            "the trainer has 1 process, and this site has 2; make it with devices=2",
        ),
    ],
)
def test_a_trainer_has_as_many_processes_as_its_site(jobs, head, middle, how, reason):
    assert reason in failure(jobs, head, middle, "", *how)
