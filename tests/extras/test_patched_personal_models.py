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
