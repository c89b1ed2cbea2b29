"""What each site does: inner steps on text of its own, exchange after exchange."""

import argparse
import time

import torch
from data import Batches, corpus
from model import GPT, optimizer_of

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
for name in ("rows", "warmup", "steps"):
    parser.add_argument(f"--{name}", type=int)
args = parser.parse_args()

flare.init()
info = flare.system_info()
text, length = corpus(info["clients"])[0][info["site_index"]], info["model_args"]["length"]
net, data = GPT(**info["model_args"]), Batches(text, args.rows, length, info["seed"])
optimizer, schedule = optimizer_of(net, args.lr, args.warmup, args.steps)

# One loop over all exchanges, kills and workers; the workflow says when there is an exchange.
steps = flare.outer_steps(net, optimizer, examples=len(text), schedule=schedule, data=data)
for step in steps:
    began = time.monotonic()
    loss = net.loss(next(data))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    steps.report(train_loss=loss, seconds=time.monotonic() - began)
    if step % 10 == 9:  # drawn over the tokens that this site has seen
        flare.log("loss", loss, global_step=(step + 1) * args.rows * length)
