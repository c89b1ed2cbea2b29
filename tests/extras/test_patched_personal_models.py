"""Patched trainers under workflows in which a site has tensors or a model of its own."""

import pytest
import torch
from patched_jobs import HF, HF_LOOP, LIT, LIT_LOOP, bits, finished, same
from safetensors.torch import load_file

TRAINERS = {
    "lightning": (LIT, "trainer = trainer_of()\nflare.patch(trainer)", LIT_LOOP),
    "hf": (HF, "trainer = trainer_of(Net())\nflare.patch(trainer)", HF_LOOP),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_model_beside_the_global_one_changes_nothing_in_that(jobs, name):
    plain = finished(jobs, *TRAINERS[name])
    assert same(bits(plain), bits(finished(jobs, *TRAINERS[name], "workflow.type=ditto")))


@pytest.mark.parametrize("name", TRAINERS)
def test_a_tensor_of_the_sites_own_stays_there(jobs, name):
    how = 'workflow={type=fedper, args{personal=["bias"]}}'
    run = finished(jobs, *TRAINERS[name], how)
    first, last = load_file(run.directory.checkpoint(0)), load_file(run.directory.final_model)
    assert {key for key in first if torch.equal(first[key], last[key])} == {"layer.bias"}
    kept = run.directory.path.glob("sites/*/state/*/.flstream/personal.safetensors")
    assert not any(torch.equal(load_file(path)["layer.bias"], first["layer.bias"]) for path in kept)


@pytest.mark.parametrize("name", TRAINERS)
def test_the_job_overrules_what_a_script_says_of_optimizer_states(jobs, name):
    library, head, loop = TRAINERS[name]
    anew = head.replace("patch(trainer)", "patch(trainer, restore_state=False)")
    reset = finished(jobs, library, head, loop, "train.optimizer_state=reset")
    assert same(bits(reset), bits(finished(jobs, library, anew, loop)))
    local = finished(jobs, library, anew, loop, "train.optimizer_state=local")
    assert same(bits(local), bits(finished(jobs, library, head, loop)))
    assert not same(bits(local), bits(reset))


MOMENTS = {"lightning": "momentum_buffer", "hf": "exp_avg, exp_avg_sq"}


@pytest.mark.parametrize("name", TRAINERS)
def test_an_optimizer_goes_on_with_the_state_that_all_sites_share(jobs, name):
    library, head, loop = TRAINERS[name]
    # The schedule and the order of examples would go on with the site's own state alone.
    how = "lr_scheduler_type='constant', per_device_train_batch_size=12, num_train_epochs=3"
    head = head.replace("trainer_of(Net())", f"trainer_of(Net(), {how})")
    shared = ["train.optimizer_state=global", f"train.optimizer_moments=[{MOMENTS[name]}]"]
    found = finished(jobs, library, head, loop, *shared)
    # With one site, the mean is its own.
    local = finished(jobs, library, head, loop, "train.optimizer_state=local")
    due = bits(local)
    assert all(torch.allclose(each, due[key]) for key, each in bits(found).items())
    for body in MOMENTS[name].split(", "):
        kept = load_file(found.directory.checkpoints / f"round-0002.{body}.safetensors")
        assert all(each.any() for each in kept.values())
    # A model of the site's own has no part in it.
    apart = finished(jobs, library, head, loop, *shared, "workflow.type=ditto")
    assert same(bits(apart), bits(found))
    assert list(apart.directory.path.glob("sites/*/state/*/beside.*"))
