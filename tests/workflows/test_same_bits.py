"""Every workflow and every way to aggregate: the same bits for any workers and any chunks."""

import pytest
from run_fixtures import Jobs
from training_scripts import noisy, results

from flstream.job.aggregation_method import METHODS

SITES = 8
# One chunk of the model and more of it than fit into one.
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
    "private": ("privacy.type=central", "privacy.clipping.norm=1"),
}
AGGREGATORS = {
    method: (f"aggregation.method={method}", "aggregation.clip_norm=median") for method in METHODS
}
# A site's control in SCAFFOLD is whatever it says.
SENDS_CONTROL = """
for name, tensor in model.meta.get("control", {}).items():
    if tensor.is_floating_point():
        tensor += torch.randn(tensor.shape, dtype=tensor.dtype)
    meta.setdefault("control", {})[name] = tensor
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [*WORKFLOWS.values(), *AGGREGATORS.values()], ids=[*WORKFLOWS, *AGGREGATORS]
)
def test_neither_workers_nor_chunks_change_a_bit(jobs: Jobs, settings):
    found = {
        case: left_by(jobs.run(noisy(SENDS_CONTROL), *HOW, *settings, *how))
        for case, how in CASES.items()
    }
    due = found["one worker, 4 KiB"]
    assert found == dict.fromkeys(CASES, due)


def left_by(run):
    """What nothing but the job may decide, with the bodies beside the model."""
    beside = [run.directory.path / "cross_site/cross_val_results.json"]
    beside += sorted(run.directory.checkpoints.glob("round-0002.*.safetensors"))
    return results(run), {each.name: each.read_bytes() for each in beside if each.exists()}
