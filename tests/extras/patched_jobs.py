"""Jobs around patched trainers, small enough for each case, and what came of them."""

import textwrap

import torch
from safetensors.torch import load_file

from flstream.telemetry.events import SiteLog, decode_event

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


def by_site(found, key):
    """Site, round and value of what was logged, whichever site was first."""
    values = [each for each in events(found, SiteLog) if each.key == key]
    return sorted((each.site, each.round, each.value) for each in values)


def bits(found):
    return load_file(found.directory.final_model)


def same(first, second):
    return all(torch.equal(each, second[name]) for name, each in first.items())
