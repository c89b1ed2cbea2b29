"""What the patch of a Hugging Face trainer does in each case, and what it refuses."""

import textwrap

import pytest
import torch
from patched_jobs import (
    HF,
    HF_LOOP,
    NET,
    bits,
    by_site,
    events,
    failure,
    finished,
    logged,
    run,
    same,
)
from safetensors.torch import load_file

from flstream.telemetry.events import SiteLog, SiteUpdate


@pytest.mark.parametrize(
    ("patch", "steps", "weight"),
    [
        ("flare.patch(trainer)", [6, 12], 12),
        ("flare.patch(trainer, local_steps=2)", [2, 4], 4),
        ("flare.patch(trainer, local_epochs=0.5)", [3, 6], 6),
        ("flare.patch(trainer, restore_state=False)", [6, 6], 12),
    ],
)
def test_hf_goes_on_by_a_tasks_steps_which_weigh_its_update(jobs, patch, steps, weight):
    found = finished(jobs, HF, f"trainer = trainer_of(Net())\n{patch}", HF_LOOP)
    assert logged(found, "step") == steps
    assert [each.weight for each in events(found, SiteUpdate)] == [weight, weight]
    assert found.summary.metrics[0].keys() == {"round", "eval_loss", "sites"}


def test_hf_trains_and_scores_what_the_server_has(jobs):
    head = "trainer = trainer_of(Net())\nflare.patch(trainer)\nflare.patch(trainer)"
    found = finished(jobs, HF, head, HF_LOOP, "clients.count=2")
    losses = [each["eval_loss"] for each in found.summary.metrics[:2]]
    assert losses[1] < losses[0]
    # Scored or not, and in whatever process: the same model.
    alone = HF_LOOP.replace("    trainer.evaluate()\n", "")
    for loop, how in ((alone, []), (HF_LOOP, ["clients.parallel=1"])):
        assert same(bits(found), bits(finished(jobs, HF, head, loop, "clients.count=2", *how)))


def test_hf_answers_evaluations_and_trains_nothing_in_them(jobs):
    head = "trainer = trainer_of(Net())\nflare.patch(trainer)"
    found = finished(jobs, HF, head, HF_LOOP, "workflow.args.evaluate=task")
    assert [each["round"] for each in found.summary.metrics] == [1, 2]
    assert all("eval_loss" in each for each in found.summary.metrics)


def test_hf_records_what_the_trainer_logs(jobs):
    head = "trainer = trainer_of(Net(), logging_steps=3)\nflare.patch(trainer, stream_metrics=True)"
    found = finished(jobs, HF, head, HF_LOOP)
    losses = [each for each in events(found, SiteLog) if each.key == "loss"]
    assert [each.step for each in losses] == [3, 6, 9, 12]


def test_hf_exchanges_only_what_both_have_if_it_may(jobs):
    head = """
    class More(Net):
        def __init__(self):
            super().__init__()
            self.head = __import__("torch").nn.Linear(2, 2)
    trainer = trainer_of(More())
    """
    error = failure(jobs, HF, f"{head}\n    flare.patch(trainer)", HF_LOOP)
    assert "the received model lacks 2 tensors ('head.bias', 'head.weight')" in error
    assert "load_state_dict_strict=False" in error
    loose = f"{head}\n    flare.patch(trainer, load_state_dict_strict=False)"
    assert bits(finished(jobs, HF, loose, HF_LOOP)).keys() == {"layer.weight", "layer.bias"}


def test_a_model_that_the_trainer_makes_anew_is_the_received_one(jobs):
    made = HF.replace("transformers.Trainer(net, args", "transformers.Trainer(None, args")
    anew = "eval_dataset=Points(), model_init=lambda: Net())"
    made = made.replace("eval_dataset=Points())", anew)
    head = "trainer = trainer_of(Net())\nflare.patch(trainer)"
    alone = HF_LOOP.replace("    trainer.evaluate()\n", "")
    scored = finished(jobs, made, head, HF_LOOP)
    losses = [each["eval_loss"] for each in scored.summary.metrics[:2]]
    assert losses[1] < losses[0]
    assert same(bits(scored), bits(finished(jobs, made, head, alone)))
    # What is not trained stays what it was, to the bit.
    still = "trainer = trainer_of(Net(), learning_rate=0.0)\nflare.patch(trainer)"
    idle = finished(jobs, made, still, alone)
    assert same(bits(idle), load_file(idle.directory.checkpoint(0)))


def test_a_script_may_go_on_from_a_checkpoint_of_its_own(jobs):
    head = """
    trainer = trainer_of(Net(), save_strategy="epoch")
    flare.patch(trainer)
    """
    given = "'out/checkpoint-6' if trainer.state.global_step else None"
    found = finished(jobs, HF, head, HF_LOOP.replace("train()", f"train({given})"))
    assert logged(found, "step") == [6, 12]
    assert same(bits(found), bits(finished(jobs, HF, head, HF_LOOP)))


def test_several_sets_of_examples_are_one_score(jobs):
    script = HF.replace("eval_dataset=Points()", "eval_dataset={'a': Points(), 'b': Points()}")
    head = "trainer = trainer_of(Net())\nflare.patch(trainer)"
    for how in ("workflow.args.evaluate=task", "workflow.args.evaluate=received"):
        found = finished(jobs, script, head, HF_LOOP, how)
        assert all(
            {"eval_a_loss", "eval_b_loss"} <= each.keys() for each in found.summary.metrics[:2]
        )


def test_tensors_of_other_shapes_stay_at_home_if_they_may(jobs):
    head = """
    wide = Net()
    wide.layer = __import__("torch").nn.Linear(4, 2)
    wide.forward = lambda x, labels=None: {"loss": wide.layer(x).mean(), "logits": x}
    wide.extra = Net().layer
    """
    model = NET.replace(
        "self.layer = nn.Linear(4, 1, dtype=getattr(torch, dtype))",
        "self.layer = nn.Linear(4, 1)\n        self.extra = nn.Linear(4, 1)",
    )
    patch = "trainer = trainer_of(wide)\nflare.patch(trainer, load_state_dict_strict=False)"
    script = HF + textwrap.dedent(head) + patch + HF_LOOP
    found = jobs.run(script, "clients.count=1", model=model)
    assert found.summary.status == "finished", found.summary.error
    assert bits(found)["layer.weight"].shape == (1, 4)


def test_a_prefix_of_the_servers_names_is_taken_off_and_put_on(jobs):
    wrapped = NET.replace("    return Net(dtype)", "    return nn.ModuleDict({'net': Net(dtype)})")
    script = HF + "trainer = trainer_of(Net())\nflare.patch(trainer, server_key_prefix='net.')"
    found = jobs.run(script + HF_LOOP, "clients.count=1", model=wrapped)
    assert found.summary.status == "finished", found.summary.error
    assert bits(found).keys() == {"net.layer.weight", "net.layer.bias"}


def test_a_narrower_dtype_is_widened_and_a_wider_one_refused_before_training(jobs):
    head = "trainer = trainer_of(Net('bfloat16'), bf16=False)\nflare.patch(trainer)"
    found = finished(jobs, HF, head, HF_LOOP)
    assert bits(found)["layer.weight"].dtype == torch.float32
    head = "trainer = trainer_of(Net())\nflare.patch(trainer)"
    error = failure(jobs, HF, head, HF_LOOP, "model.args.dtype=bfloat16")
    assert "is trained in F32, and the received model has BF16" in error


def test_outputs_of_a_trainer_stay_with_the_site(jobs, tmp_path):
    shared = tmp_path / "shared"
    head = f"""
    trainer = trainer_of(Net(), save_strategy="steps", save_steps=2)
    trainer.args.output_dir = {str(shared)!r}
    flare.patch(trainer)
    """
    found = finished(jobs, HF, head, HF_LOOP)
    assert not shared.exists()
    work = found.directory.site("site-1") / "work" / "trainer_output"
    assert [path.name for path in work.glob("checkpoint-*")] == ["checkpoint-12"]


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        ("flare.patch(Net())", "patch() was given a Net; give it a transformers.Trainer"),
        (
            "flare.patch(trainer_of(Net()), local_epochs=1, local_steps=1)",
            "patch() was given local_epochs and local_steps",
        ),
        (
            "flare.patch(trainer_of(Net()), params_scope='adapter')",
            "params_scope is adapter, and the trainer's model is a Net without one",
        ),
        ("flare.patch(trainer_of(Net()), params_scope='both')", "it can be auto, model or adapter"),
        (
            "trainer = trainer_of(Net(), load_best_model_at_end=True, save_strategy='epoch', "
            "eval_strategy='epoch')\nflare.patch(trainer)",
            "a trainer with load_best_model_at_end cannot be patched",
        ),
    ],
)
def test_hf_refuses_what_cannot_be(jobs, middle, reason):
    assert reason in failure(jobs, HF, middle, "")


UNEVEN = """
class Few(Points):
    def __len__(self):
        return {count}
"""


@pytest.mark.parametrize(("count", "weight"), [(1, 1), (5, 5), (13, 13), (32, 32)])
def test_the_weight_is_the_number_of_examples(jobs, count, weight):
    head = HF.replace("train_dataset=Points()", "train_dataset=Few()")
    middle = (
        "trainer = trainer_of(Net(), per_device_train_batch_size=4, "
        "gradient_accumulation_steps=2)\nflare.patch(trainer)"
    )
    found = finished(jobs, head + UNEVEN.format(count=count), middle, HF_LOOP)
    assert [each.weight for each in events(found, SiteUpdate)] == [weight, weight]


def test_a_new_beginning_is_one_in_each_process(jobs):
    head = "trainer = trainer_of(Net())\nflare.patch(trainer, restore_state=False)"
    loop = HF_LOOP + (
        "    state = trainer.optimizer.state_dict()['state'][0]\n"
        "    flare.log('moments', float(state['step']))\n"
    )
    found = finished(jobs, HF, head, loop, "clients.count=2", "rounds=3")
    assert logged(found, "moments") == [6.0] * 6
    again = finished(jobs, HF, head, loop, "clients.count=2", "rounds=3", "clients.parallel=1")
    assert same(bits(found), bits(again))


def test_what_an_early_stop_counts_goes_on_in_another_process(jobs):
    head = (
        "trainer = trainer_of(Net(), num_train_epochs=3, eval_strategy='epoch', learning_rate=0.5,"
        " save_strategy='no', metric_for_best_model='eval_loss', greater_is_better=False)\n"
        "trainer.add_callback(transformers.EarlyStoppingCallback(2))\nflare.patch(trainer)"
    )
    how = ("clients.count=2", "rounds=3")
    found = finished(jobs, HF, head, HF_LOOP, *how)
    again = finished(jobs, HF, head, HF_LOOP, *how, "clients.parallel=1")
    assert by_site(found, "step") == by_site(again, "step")
    assert same(bits(found), bits(again))


def test_more_rounds_than_were_planned_stay_at_the_end_of_the_schedule(jobs):
    head = "trainer = trainer_of(Net(), logging_steps=1)\nflare.patch(trainer, stream_metrics=True)"
    first = finished(jobs, HF, head, HF_LOOP)
    script = HF + head + HF_LOOP
    more = jobs.go_on(first, script, "clients.count=1", "rounds=3", model=NET)
    assert more.summary.status == "finished", more.summary.error
    rates = logged(more, "learning_rate")
    assert len(rates) == 18
    assert rates[:12] == sorted(rates[:12], reverse=True)
    assert rates[12:] == [0.0] * 6
    log = more.directory.site_log("site-1").read_text()
    assert "planned for 12 steps and has come to its end" in log


def test_a_second_training_of_a_task_is_refused(jobs):
    head = "trainer = trainer_of(Net())\nflare.patch(trainer)"
    found = run(jobs, HF, head, HF_LOOP + "    trainer.train()\n", "rounds=1")
    log = found.directory.site_log("site-1").read_text()
    assert "trainer.train() was called again after the task was answered" in log
