"""Jobs around patched trainers, small enough for each case, and their results."""

import textwrap
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from training_scripts import of_kind

from flstream.telemetry.events import SiteLog

# A module that Lightning and Hugging Face can both train, with their trainers in a few lines.
NET = """
import torch
from torch import nn


class Points(torch.utils.data.Dataset):
    count = 12

    def __len__(self):
        return self.count

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
# Its base, which is not exchanged, is the same wherever it is made.
ADAPTED = NET.replace(
    "    return Net(dtype)",
    "    from peft import LoraConfig, get_peft_model\n"
    "    torch.manual_seed(0)\n"
    "    return get_peft_model(Net(dtype), LoraConfig(r=2, target_modules=['layer']))",
)

_HF = """
import torch
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
_HF_LOOP = """
while flare.is_running():
    trainer.evaluate()
    trainer.train()
    flare.log("step", trainer.state.global_step)
"""

_LIT = """
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

    test_step = predict_step = training_step

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
_LIT_LOOP = """
while flare.is_running():
    trainer.validate(module, loader())
    trainer.fit(module, loader())
    flare.log("step", trainer.global_step)
    flare.log("epoch", trainer.current_epoch)
"""


class Library(NamedTuple):
    """A library: how a script begins, a patched trainer, the loop, its line of scores, a name."""

    head: str
    patch: str
    loop: str
    scores: str
    loss: str

    @property
    def unscored(self) -> str:
        """The loop without scores."""
        assert self.scores in self.loop
        return self.loop.replace(self.scores, "")

    def script(self, middle: str | None = None, loop: str | None = None) -> str:
        """A script, whose trainer and loop may be others."""
        middle = self.patch if middle is None else textwrap.dedent(middle)
        return f"{self.head}{middle}\n{self.loop if loop is None else loop}"


_HF_PATCH = "trainer = trainer_of(Net())\nflare.patch(trainer)"
_LIT_PATCH = "trainer = trainer_of()\nflare.patch(trainer)"
_LIT_SCORES = "    trainer.validate(module, loader())\n"
HF = Library(_HF, _HF_PATCH, _HF_LOOP, "    trainer.evaluate()\n", "eval_loss")
LIT = Library(_LIT, _LIT_PATCH, _LIT_LOOP, _LIT_SCORES, "val_loss")
LIBRARIES = {"hf": HF, "lightning": LIT}
SHARED = ("clients.count=2", "clients.parallel=1")


def finished(jobs, script, *how, model=NET):
    """A run of one site, unless it is to have more."""
    run = jobs.run(script, "clients.count=1", *how, model=model)
    assert run.summary.status == "finished", run.summary.error
    return run


def failure(jobs, script, *how):
    """Run a job that fails, and return its error."""
    run = jobs.run(script, "clients.count=1", *how, model=NET)
    assert run.summary.status == "failed"
    return run.summary.error


# Calls what a test has to refuse, and goes on.
REFUSED = """
from flstream.errors import ClientError

flare.init()
for code in CODES:
    try:
        exec(code)
        flare.log("said", "nothing")
    except ClientError as error:
        flare.log("said", str(error))
flare.is_running()
"""


def refusals(jobs, library, cases):
    """Check that each of some lines is refused with its words, all in one run."""
    script = library.head + REFUSED.replace("CODES", repr([*cases]))
    run = jobs.run(script, "clients.count=1", "rounds=1", model=NET)
    messages = [log.text for log in of_kind(run, SiteLog) if log.key == "said"]
    assert len(messages) == len(cases)
    for text, words in zip(messages, cases.values(), strict=True):
        assert words in text


def logged(run, key):
    """Site, round and value of each log of a key, whichever site was first."""
    values = [log for log in of_kind(run, SiteLog) if log.key == key]
    return sorted((log.site, log.round, log.value) for log in values)


def values(run, key):
    return [value for _, _, value in logged(run, key)]


def losses(run, library):
    """The scores of the models that sites received."""
    return [
        metrics.get(library.loss) for metrics in run.summary.metrics[: run.summary.rounds_completed]
    ]


def bits(run):
    return load_file(run.directory.final_model)


def same(first, second):
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())
