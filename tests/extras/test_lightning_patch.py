"""What the patch of a Lightning trainer does in each case, and what it refuses."""

import pytest
from patched_jobs import LIT, LIT_LOOP, bits, by_site, events, failure, finished, logged, same

from flstream.telemetry.events import SiteUpdate


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
    assert by_site(own, "sum") == by_site(own, "later")
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
            "the trainer has 2 processes, and this site has 1; make it with devices=1",
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
