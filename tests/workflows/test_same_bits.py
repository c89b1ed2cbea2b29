"""Every workflow and every way to aggregate: the same bits for any workers and any chunks."""

import re

from nightly_cases import first_and_nightly
from run_fixtures import Jobs
from training_scripts import noisy, results

from flstream.job.aggregation_method import METHODS
from flstream.job.workflow_code import built_ins

SITES = 8
# A little more than 2 MiB, so that the second chunk of that size is a short one.
HOW = [f"clients.count={SITES}", "model.args.elements=530000"]
CASES = {
    "one worker, 4 KiB": ("clients.parallel=1", "streaming.tensor_download_chunk_size=4KiB"),
    "two workers, 2 MiB": ("clients.parallel=2", "streaming.tensor_download_chunk_size=2MiB"),
    "a worker each, 4 KiB": ("clients.parallel=8", "streaming.tensor_download_chunk_size=4KiB"),
}
WORKFLOWS = {
    "fedavg": (),
    "fedavg with an optimizer": ("server_optimizer.type=fedadam", "aggregation.clip_norm=3"),
    "cyclic": ("workflow.type=cyclic",),
    "swarm": ("workflow.type=swarm",),
    "cross_site": ("workflow={type=cross_site, args{after=fedavg}}",),
    "scaffold": ("workflow.type=scaffold",),
    "feddyn": ("workflow.type=feddyn",),
    "fedper": ('workflow={type=fedper, args{personal=["^b$"]}}',),
    "ditto": ("workflow.type=ditto",),
    "evaluate": ("workflow.type=evaluate",),
    "scaffold, with the mean of optimizers": (
        "workflow.type=scaffold",
        "train.optimizer_state=global",
        "train.optimizer_moments=[momentum_buffer]",
    ),
    "private": ("privacy.type=central", "privacy.clipping.norm=1"),
}
AGGREGATORS = {
    method: (f"aggregation.method={method}", "aggregation.clip_norm=median") for method in METHODS
}
EVERY = {**WORKFLOWS, **AGGREGATORS}
# What a site sends beside the model is whatever it says.
SENDS_BODIES = """
for body in ("control", "momentum_buffer", "optimizer_steps"):
    for name, tensor in model.meta.get(body, {}).items():
        if tensor.is_floating_point():
            tensor += torch.randn(tensor.shape, dtype=tensor.dtype)
        meta.setdefault(body, {})[name] = tensor
"""


def test_no_workflow_is_left_out():
    named = {word for how in WORKFLOWS.values() for each in how for word in re.split(r"\W", each)}
    assert built_ins().keys() <= named | {"fedavg"}


@first_and_nightly("settings", EVERY.values(), brief=1, ids=EVERY)
def test_neither_workers_nor_chunks_change_a_bit(jobs: Jobs, settings):
    found = {
        case: left_by(jobs.run(noisy(SENDS_BODIES), *HOW, *settings, *how))
        for case, how in CASES.items()
    }
    due = found["one worker, 4 KiB"]
    assert found == dict.fromkeys(CASES, due)


def left_by(run):
    """What nothing but the job may decide, with the bodies beside the model."""
    beside = [run.directory.path / "cross_site/cross_val_results.json"]
    beside += sorted(run.directory.checkpoints.glob("round-0002.*.safetensors"))
    return results(run), {each.name: each.read_bytes() for each in beside if each.exists()}
