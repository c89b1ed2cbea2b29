"""What the patch of a Lightning trainer does in each case, and what it refuses."""

from nightly_cases import first_and_nightly
from patched_jobs import LIT, SHARED, bits, failure, finished, logged, refusals, same, values
from training_scripts import of_kind

from flstream.telemetry.events import SiteUpdate


@first_and_nightly(
    ("trainer", "patch", "steps", "epochs"),
    [
        # A round that ended within an epoch is followed by the rest of it.
        ("max_epochs=-1, max_steps=4", "", [4, 8], [1, 3]),
        ("max_epochs=2", "", [12, 24], [2, 4]),
        ("", "restore_state=False", [6, 12], [1, 2]),
        ("max_epochs=2, accumulate_grad_batches=3", "", [4, 8], [2, 4]),
    ],
)
def test_lightning_goes_on_by_epochs_or_steps_in_any_process(jobs, trainer, patch, steps, epochs):
    script = LIT.script(f"trainer = trainer_of({trainer})\nflare.patch(trainer, {patch})")
    own = finished(jobs, script, "clients.count=2")
    assert values(own, "step") == steps * 2
    assert values(own, "epoch") == epochs * 2
    assert {each.weight for each in of_kind(own, SiteUpdate)} == {steps[0]}
    assert same(bits(own), bits(finished(jobs, script, *SHARED)))


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
    loop = LIT.loop.replace("loader()", "data").replace("module, data", "module, datamodule=data")
    run = finished(jobs, LIT.script(data, loop))
    [split] = set(values(run, "split fit"))
    assert values(run, "split validate") == [split, split]


def test_a_state_that_cannot_be_read_again_is_refused_in_its_first_round(jobs):
    middle = """
    class Odd(pl.Callback):
        def state_dict(self):
            return {"net": Net()}
    trainer = trainer_of(callbacks=[Odd()])
    flare.patch(trainer)
    """
    reason = failure(jobs, LIT.script(middle))
    assert "round 1" in reason
    assert "has more than tensors and plain values" in reason
    finished(jobs, LIT.script(middle.replace("(trainer)", "(trainer, restore_state=False)")))


def test_a_score_after_the_answer_is_none_and_evaluations_train_nothing(jobs, plain):
    # Nor is what is done with the best model of the training.
    middle = "trainer = trainer_of(enable_checkpointing=True)\nflare.patch(trainer)"
    best = """    trainer.test(module, loader(), ckpt_path="best")
    trainer.predict(module, loader(), ckpt_path="best")
"""
    late = finished(jobs, LIT.script(middle, LIT.unscored + best + LIT.scores))
    assert same(bits(late), plain("lightning"))
    assert all("val_loss" not in each for each in late.summary.metrics)
    tasks = finished(jobs, LIT.script(), "workflow.args.evaluate=task")
    assert [each["round"] for each in tasks.summary.metrics] == [1, 2]


def test_callbacks_begin_with_the_received_model_and_anew_if_they_are_to(jobs):
    middle = """
    class Looks(pl.Callback):
        def on_fit_start(self, trainer, module):
            flare.log("sum", module.layer.weight.double().sum().item())
        def on_train_start(self, trainer, module):
            flare.log("later", module.layer.weight.double().sum().item())
    stops = pl.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0)
    trainer = trainer_of(max_epochs=3, callbacks=[Looks(), stops])
    flare.patch(trainer, restore_state=False)
    """
    loop = LIT.unscored.replace("fit(module, loader())", "fit(module, loader(), loader())")
    own = finished(jobs, LIT.script(middle, loop), "clients.count=2", "rounds=3")
    assert logged(own, "sum") == logged(own, "later")
    shared = finished(jobs, LIT.script(middle, loop), *SHARED, "rounds=3")
    assert same(bits(own), bits(shared))


def test_lightning_refuses_what_cannot_be(jobs):
    fit = "flare.patch(trainer); flare.receive(); trainer.fit(module, loader())"
    calls = "trainer = trainer_of(callbacks=[pl.callbacks.{}])"
    swa = calls.format("StochasticWeightAveraging(0.1)")
    refusals(
        jobs,
        LIT,
        {
            "flare.patch(module)": "patch() was given a Module; give it a Trainer",
            f"{calls.format('EMAWeightAveraging()')}; {fit}": "averages",
            f"{swa}; {fit}": "it averages the weights of one whole training",
            f"trainer = trainer_of(); module.__fl_meta__ = 3; {fit}": "is a int; make it a dict",
        },
    )
    middle = "trainer = trainer_of()\nflare.patch(trainer, update_fit_loop=False)"
    assert "trainer.fit() made no step" in failure(jobs, LIT.script(middle))


def test_a_module_that_was_scored_in_another_object_is_trained_from_the_received_model(jobs, plain):
    loop = "other = Module()\n" + LIT.loop.replace("validate(module", "validate(other")
    assert same(bits(finished(jobs, LIT.script(loop=loop))), plain("lightning"))
