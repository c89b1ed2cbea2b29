"""The optimizer of training code is found in its text, with what it keeps for each weight."""

import pytest

from flstream.job import load_job
from flstream.simulation.forecasting.forecast import forecast, plain_layout
from flstream.simulation.forecasting.optimizers import OptimizerUse, optimizer_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ntorch.optim.AdamW(p, lr=1)", ("AdamW", 2)),
        ("import torch.optim as optim\noptim.SGD(p, lr=1)", ("SGD", 0)),
        ("from torch.optim import SGD as S\nS(p, momentum=0.9)", ("SGD", 1)),
        ("import torch\ntorch.optim.RMSprop(p, centered=True, momentum=0.1)", ("RMSprop", 3)),
        ("import torch\ntorch.optim.SGD(p); torch.optim.Adam(p)", ("Adam", 2)),
        ("from transformers import Trainer\nTrainer(m)", ("adamw_torch", 2)),
        ("this is no Python", None),
    ],
)
def test_an_optimizer_is_recognised_by_its_call(tmp_path, text, found):
    script = tmp_path / "client.py"
    script.write_text(text)
    assert optimizer_of(script) == (None if found is None else OptimizerUse(*found))


def test_the_forecast_counts_what_is_trained_for_each_worker(jobs):
    head = "import flstream.client as flare\nimport torch\n"
    plain = jobs.make(head)
    layout = plain_layout(1 << 20)
    before = forecast(plain, layout)
    assert (before.optimizer, before.training_bytes) == ("", 0)
    # In a file beside the script.
    (jobs.folder / "client.py").write_text(f"{head}import parts")
    (jobs.folder / "parts.py").write_text(f"{head}torch.optim.Adam(p)")
    after = forecast(load_job(jobs.folder / "job.conf", []), layout)
    assert (after.optimizer, after.training_bytes) == ("Adam", 3 << 20)
    assert after.client_bytes == before.client_bytes
    assert after.total_bytes >= before.total_bytes + 2 * (3 << 20)
    # What is not aggregated is not sent, and most likely frozen.
    left_out = load_job(jobs.folder / "job.conf", ['aggregation.exclude=["tensor.1"]'])
    assert forecast(left_out, plain_layout(1 << 20, tensors=2)).training_bytes == 3 << 19
