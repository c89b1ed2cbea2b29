"""A job whose score follows from its learning rate, which its sites add to the model."""

from pathlib import Path

CLIENT = """
import argparse
from pathlib import Path

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1.0)
parser.add_argument("--bonus", type=float, default=0.0)
args = parser.parse_args()
flare.init()
broken = Path("broken").absolute()
while flare.is_running():
    model = flare.receive()
    if Path(__file__).with_name("broken").exists() and args.lr == 2.0:
        raise RuntimeError("the disk of this site is broken")
    if flare.is_evaluate():
        score = args.lr / 10 + args.bonus + model.current_round / 1000
        flare.send(flare.FLModel(metrics={"accuracy": score}))
        continue
    params = {name: value + args.lr for name, value in model.params.items()}
    flare.send(flare.FLModel(params))
"""

JOB = """
name = swept
seed = 5
rounds = 2
clients { count = 2 }
engine { type = inline }
model { factory = "model:build" }
train { script = client.py, args { lr = 1.0 } }
"""

MODEL = """
import torch


def build():
    return {"w": torch.arange(6.0)}
"""


def write_job(folder: Path) -> None:
    """Write the job into a folder."""
    for name, text in (("job.conf", JOB), ("client.py", CLIENT), ("model.py", MODEL)):
        (folder / name).write_text(text)
