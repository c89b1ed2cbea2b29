"""What the patch of a Hugging Face trainer does in each case, and what it refuses."""

import torch
from nightly_cases import first_and_nightly
from patched_jobs import HF, NET, bits, failure, finished, losses, refusals, same, values
from safetensors.torch import load_file
from training_scripts import of_kind

from flstream.telemetry.events import SiteLog, SiteUpdate

UNEVEN = "per_device_train_batch_size=4, gradient_accumulation_steps=2"


@first_and_nightly(
    ("patch", "trainer", "count", "steps", "weight"),
    [
        ("restore_state=False", "", 12, [6, 6], 12),
        ("", UNEVEN, 13, [2, 4], 13),
        ("local_steps=2", "", 12, [2, 4], 4),
        ("local_epochs=0.5", "", 12, [3, 6], 6),
        ("", UNEVEN, 1, [1, 2], 1),
        ("", UNEVEN, 5, [1, 2], 5),
        ("", UNEVEN, 32, [4, 8], 32),
    ],
    brief=2,
)
def test_a_trainer_goes_on_by_steps_and_weighs_examples(jobs, patch, trainer, count, steps, weight):
    middle = f"""
    Points.count = {count}
    trainer = trainer_of(Net(), {trainer})
    flare.patch(trainer, {patch})
    """
    run = finished(jobs, HF.script(middle))
    assert values(run, "step") == steps
    assert [each.weight for each in of_kind(run, SiteUpdate)] == [weight, weight]
    assert run.summary.metrics[0].keys() == {"round", "eval_loss", "sites"}


def test_several_sets_of_examples_are_one_score_and_nothing_is_trained_for_it(jobs):
    script = HF.script().replace("=Points())", "={'a': Points(), 'b': Points()})")
    run = finished(jobs, script, "workflow.args.evaluate=task")
    assert {"eval_a_loss", "eval_b_loss"} <= run.summary.metrics[0].keys()
    assert [each["round"] for each in run.summary.metrics] == [1, 2]
    assert values(run, "step")[-1] == 12


def test_what_only_one_side_has_or_has_in_another_shape_stays_at_home_if_it_may(jobs):
    more = "net = Net()\nnet.head = torch.nn.Linear(2, 2)\ntrainer = trainer_of(net)\n"
    reason = failure(jobs, HF.script(f"{more}flare.patch(trainer)"))
    assert "the received model lacks 2 tensors ('head.bias', 'head.weight')" in reason
    assert "load_state_dict_strict=False" in reason
    loose = f"""{more}
net.layer = torch.nn.Linear(4, 2)
net.forward = lambda x, labels=None: {{"loss": net.layer(x).mean(), "logits": x}}
flare.patch(trainer, load_state_dict_strict=False)
"""
    line = "self.layer = nn.Linear(4, 1, dtype=getattr(torch, dtype))"
    model = NET.replace(line, f"{line}\n        self.extra = nn.Linear(4, 1)")
    run = finished(jobs, HF.script(loose), model=model)
    names = {f"{layer}.{part}" for layer in ("layer", "extra") for part in ("weight", "bias")}
    assert bits(run).keys() == names
    assert bits(run)["layer.weight"].shape == (1, 4)


@first_and_nightly("loop", [HF.loop, HF.unscored], ids=["scored", "unscored"])
def test_a_model_that_the_trainer_makes_anew_is_the_received_one(jobs, loop):
    script = HF.script("trainer = trainer_of(Net(), learning_rate=0.0)\nflare.patch(trainer)", loop)
    script = script.replace("transformers.Trainer(net,", "transformers.Trainer(None,").replace(
        "eval_dataset=Points()", "eval_dataset=Points(), model_init=lambda: Net()"
    )
    run = finished(jobs, script)
    # What is not trained stays what it was, to the bit.
    assert same(bits(run), load_file(run.directory.checkpoint(0)))
    if loop == HF.loop:
        assert losses(run, HF) == [losses(run, HF)[0]] * 2


def test_outputs_of_a_trainer_stay_with_the_site_and_a_script_may_go_on_from_one(
    jobs, plain, tmp_path
):
    middle = f"""
    trainer = trainer_of(Net(), save_strategy="epoch")
    trainer.args.output_dir = {str(tmp_path / "shared")!r}
    flare.patch(trainer)
    """
    given = "'trainer_output/checkpoint-6' if trainer.state.global_step else None"
    run = finished(jobs, HF.script(middle, HF.loop.replace("train()", f"train({given})")))
    assert values(run, "step") == [6, 12]
    assert same(bits(run), plain("hf"))
    assert not (tmp_path / "shared").exists()
    work = run.directory.site("site-1") / "work" / "trainer_output"
    assert (work / "checkpoint-12").is_dir()


def test_a_prefix_is_taken_off_and_put_on_and_a_dtype_widened_but_not_narrowed(jobs):
    wrapped = NET.replace("    return Net(dtype)", "    return nn.ModuleDict({'net': Net(dtype)})")
    middle = """
    trainer = trainer_of(Net('bfloat16'), bf16=False)
    flare.patch(trainer, server_key_prefix='net.')
    """
    run = finished(jobs, HF.script(middle), model=wrapped)
    assert bits(run).keys() == {"net.layer.weight", "net.layer.bias"}
    assert bits(run)["net.layer.weight"].dtype == torch.float32
    reason = failure(jobs, HF.script(), "model.args.dtype=bfloat16")
    assert "is trained in F32, and the received model has BF16" in reason


def test_hf_refuses_what_cannot_be(jobs):
    best = "load_best_model_at_end=True, save_strategy='epoch', eval_strategy='epoch'"
    refusals(
        jobs,
        HF,
        {
            "flare.patch(Net())": "was given a Net; give it a transformers.Trainer",
            "flare.patch(trainer_of(Net()), local_epochs=1, local_steps=1)": "local_epochs and lo",
            "flare.patch(trainer_of(Net()), params_scope='adapter')": "model is a Net without one",
            "flare.patch(trainer_of(Net()), params_scope='both')": "auto, model or adapter",
            f"flare.patch(trainer_of(Net(), {best}))": "load_best_model_at_end cannot be patched",
        },
    )


def test_more_rounds_than_were_planned_stay_at_the_end_of_the_schedule(jobs):
    script = HF.script("""
    trainer = trainer_of(Net(), logging_steps=1)
    flare.patch(trainer, stream_metrics=True)
    flare.patch(trainer)
    """)
    run = finished(jobs, script)
    more = jobs.go_on(run, script, "clients.count=1", "rounds=3", model=NET)
    assert more.summary.status == "finished", more.summary.error
    rates = [each for each in of_kind(more, SiteLog) if each.key == "learning_rate"]
    assert [each.step for each in rates] == list(range(1, 19))
    found = [each.value for each in rates]
    assert found[:12] == sorted(found[:12], reverse=True)
    assert found[12:] == [0.0] * 6
    log = more.directory.site_log("site-1").read_text()
    assert "planned for 12 steps and has come to its end" in log


def test_a_second_training_of_a_task_is_refused(jobs):
    script = HF.script(loop=HF.loop + "    trainer.train()\n")
    run = jobs.run(script, "clients.count=1", "rounds=1", model=NET)
    log = run.directory.site_log("site-1").read_text()
    assert "trainer.train() was called again after the task was answered" in log
