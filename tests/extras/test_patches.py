"""What the patches of trainers do in each case, and what they refuse."""

import textwrap

import pytest
import torch
from safetensors.torch import load_file

from flstream.telemetry.events import SiteLog, SiteUpdate, decode_event

# A module that Lightning and Hugging Face can both train, with their trainers in a few lines.
NET = """
import torch
from torch import nn


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, place):
        x = torch.full((4,), place / 12)
        return {"x": x, "labels": x.sum()}


class Net(nn.Module):
    def __init__(self, dtype="float32"):
        super().__init__()
        self.layer = nn.Linear(4, 1, dtype=getattr(torch, dtype))

    def forward(self, x, labels=None):
        out = self.layer(x.to(self.layer.weight.dtype)).squeeze(-1)
        return {"loss": ((out - labels) ** 2).mean().float(), "logits": out}


def build(dtype="float32"):
    return Net(dtype)
"""

HF = """
import transformers
import flstream.client.hf as flare
from model import Net, Points


def trainer_of(net, **more):
    how = {
        "num_train_epochs": 1, "per_device_train_batch_size": 2, "report_to": [],
        "learning_rate": 0.1, "use_cpu": True, "disable_tqdm": True,
    }
    args = transformers.TrainingArguments(output_dir="out", **{**how, **more})
    return transformers.Trainer(net, args, train_dataset=Points(), eval_dataset=Points())
"""

HF_LOOP = """
while flare.is_running():
    trainer.evaluate()
    trainer.train()
    flare.log("step", trainer.state.global_step)
"""

LIT = """
import lightning.pytorch as pl
import torch
import flstream.client.lightning as flare
from model import Net, Points


class Module(pl.LightningModule):
    def __init__(self, dtype="float32"):
        super().__init__()
        self.layer = Net(dtype).layer

    def loss(self, batch):
        out = self.layer(batch["x"].to(self.layer.weight.dtype)).squeeze(-1)
        return ((out - batch["labels"]) ** 2).mean()

    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trainer_of(**more):
    how = {"max_epochs": 1, "logger": False, "enable_checkpointing": False,
           "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(**{**how, **more})


def loader():
    return torch.utils.data.DataLoader(Points(), batch_size=2, shuffle=True)


module = Module()
"""

LIT_LOOP = """
while flare.is_running():
    trainer.validate(module, loader())
    trainer.fit(module, loader())
    flare.log("step", trainer.global_step)
    flare.log("epoch", trainer.current_epoch)
"""


def run(jobs, head, middle, loop, *how):
    script = head + textwrap.dedent(middle) + loop
    return jobs.run(script, "clients.count=1", *how, model=NET)


def finished(jobs, head, middle, loop, *how):
    found = run(jobs, head, middle, loop, *how)
    assert found.summary.status == "finished", found.summary.error
    return found


def failure(jobs, head, middle, loop, *how):
    found = run(jobs, head, middle, loop, *how)
    assert found.summary.status == "failed"
    return found.summary.error


def events(found, kind):
    return [
        each
        for each in map(decode_event, found.directory.events.read_bytes().splitlines())
        if isinstance(each, kind)
    ]


def logged(found, key):
    return [each.value for each in events(found, SiteLog) if each.key == key]


def bits(found):
    return load_file(found.directory.final_model)


def same(first, second):
    return all(torch.equal(each, second[name]) for name, each in first.items())


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
    assert found.summary.metrics[0].keys() == {"round", "eval_loss"}


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
    assert logged(found, "step") == logged(again, "step")
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


@pytest.mark.parametrize(
    ("trainer", "patch", "steps", "epochs"),
    [
        ("max_epochs=2", "", [12, 24], [2, 4]),
        # A round that ended within an epoch is followed by the rest of it.
        ("max_epochs=-1, max_steps=4", "", [4, 8], [1, 3]),
        ("", "restore_state=False", [6, 12], [1, 2]),
        ("max_epochs=2, accumulate_grad_batches=3", "", [4, 8], [2, 4]),
    ],
)
def test_lightning_goes_on_by_a_tasks_epochs_or_steps(jobs, trainer, patch, steps, epochs):
    head = f"trainer = trainer_of({trainer})\nflare.patch(trainer, {patch})"
    found = finished(jobs, LIT, head, LIT_LOOP)
    assert logged(found, "step") == steps
    assert logged(found, "epoch") == epochs
    assert [each.weight for each in events(found, SiteUpdate)] == [steps[0], steps[0]]
    shared = finished(jobs, LIT, head, LIT_LOOP, "clients.count=2", "clients.parallel=1")
    own = finished(jobs, LIT, head, LIT_LOOP, "clients.count=2")
    assert same(bits(shared), bits(own))


def test_lightning_trains_the_same_whether_or_not_it_is_scored(jobs):
    head = "trainer = trainer_of()\nflare.patch(trainer)"
    scored = finished(jobs, LIT, head, LIT_LOOP)
    losses = [each["val_loss"] for each in scored.summary.metrics[:2]]
    assert losses[1] < losses[0]
    alone = LIT_LOOP.replace("    trainer.validate(module, loader())\n", "")
    assert same(bits(scored), bits(finished(jobs, LIT, head, alone)))
    # What it does after the answer is its own: that is no score.
    after = alone + "    trainer.validate(module, loader())\n"
    late = finished(jobs, LIT, head, after)
    assert same(bits(scored), bits(late))
    assert all("val_loss" not in each for each in late.summary.metrics)


def test_what_lightning_draws_in_setup_is_the_same_in_each_round(jobs):
    data = """
    class Split(pl.LightningDataModule):
        def setup(self, stage):
            order = torch.randperm(12)
            flare.log(f"split {stage.value}", int(order[0] * 12 + order[1]))
            self.train_data = torch.utils.data.Subset(Points(), order[:8].tolist())

        def train_dataloader(self):
            return torch.utils.data.DataLoader(self.train_data, batch_size=2, shuffle=True)

        val_dataloader = train_dataloader

    data = Split()
    trainer = trainer_of()
    flare.patch(trainer)
    """
    loop = LIT_LOOP.replace("loader()", "data").replace("module, data", "module, datamodule=data")
    scored = finished(jobs, LIT, data, loop)
    [split] = set(logged(scored, "split fit"))
    assert logged(scored, "split validate") == [split, split]
    alone = loop.replace("    trainer.validate(module, datamodule=data)\n", "")
    assert same(bits(scored), bits(finished(jobs, LIT, data, alone)))


def test_a_state_that_cannot_be_read_again_is_refused_in_its_first_round(jobs):
    head = """
    class Odd(pl.Callback):
        def state_dict(self):
            return {"net": Net()}
    trainer = trainer_of(callbacks=[Odd()])
    """
    error = failure(jobs, LIT, head + "flare.patch(trainer)", LIT_LOOP)
    assert "round 1" in error
    assert "has more than tensors and plain values" in error
    finished(jobs, LIT, head + "flare.patch(trainer, restore_state=False)", LIT_LOOP)


def test_lightning_answers_evaluations_and_trains_nothing_in_them(jobs):
    head = "trainer = trainer_of()\nflare.patch(trainer)"
    found = finished(jobs, LIT, head, LIT_LOOP, "workflow.args.evaluate=task")
    assert [each["round"] for each in found.summary.metrics] == [1, 2]


def test_lightning_goes_on_with_momentum_unless_it_is_not_to(jobs):
    kept = finished(jobs, LIT, "trainer = trainer_of()\nflare.patch(trainer)", LIT_LOOP)
    new = finished(
        jobs, LIT, "trainer = trainer_of()\nflare.patch(trainer, restore_state=False)", LIT_LOOP
    )
    assert not same(bits(kept), bits(new))


def test_lightnings_callbacks_begin_with_the_received_model_and_anew_if_they_are_to(jobs):
    head = """
    class Looks(pl.Callback):
        def on_fit_start(self, trainer, module):
            flare.log("sum", module.layer.weight.double().sum().item())
        def on_train_start(self, trainer, module):
            flare.log("later", module.layer.weight.double().sum().item())
    stops = pl.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0)
    trainer = trainer_of(max_epochs=3, callbacks=[Looks(), stops])
    flare.patch(trainer, restore_state=False)
    """
    loop = LIT_LOOP.replace("    trainer.validate(module, loader())\n", "").replace(
        "fit(module, loader())", "fit(module, loader(), loader())"
    )
    how = ("clients.count=2", "rounds=3")
    own = finished(jobs, LIT, head, loop, *how)
    assert logged(own, "sum") == logged(own, "later")
    shared = finished(jobs, LIT, head, loop, *how, "clients.parallel=1")
    assert same(bits(own), bits(shared))


@pytest.mark.parametrize(
    "callback", ["StochasticWeightAveraging(swa_lrs=0.1)", "EMAWeightAveraging(decay=0.9)"]
)
def test_lightnings_averages_of_weights_are_refused(jobs, callback):
    head = f"trainer = trainer_of(callbacks=[pl.callbacks.{callback}])\nflare.patch(trainer)"
    assert "it averages the weights of one whole training" in failure(jobs, LIT, head, LIT_LOOP)


def test_lightning_that_does_not_extend_its_loop_says_that_nothing_is_trained(jobs):
    head = "trainer = trainer_of()\nflare.patch(trainer, update_fit_loop=False)"
    assert "trainer.fit() made no step" in failure(jobs, LIT, head, LIT_LOOP)


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        ("flare.patch(module)", "patch() was given a Module; give it a Trainer"),
        (
            "trainer = trainer_of()\nflare.patch(trainer)\nmodule.__fl_meta__ = 3\n",
            "__fl_meta__ of the module is a int; make it a dict",
        ),
        (
            "trainer = trainer_of(devices=2, strategy='ddp_notebook')\nflare.patch(trainer)\n",
            "2 devices",
        ),
    ],
)
def test_lightning_refuses_what_cannot_be(jobs, middle, reason):
    assert reason in failure(jobs, LIT, middle, LIT_LOOP if "trainer" in middle else "")


def test_a_module_that_was_scored_in_another_object_is_trained_from_the_received_model(jobs):
    head = "trainer = trainer_of()\nflare.patch(trainer)\nother = Module()"
    loop = LIT_LOOP.replace("validate(module", "validate(other")
    plain = finished(jobs, LIT, "trainer = trainer_of()\nflare.patch(trainer)", LIT_LOOP)
    assert same(bits(plain), bits(finished(jobs, LIT, head, loop)))
