"""Data-parallel training: each task is one step, and what travels is the mean gradient.

All sites hold the same weights and step them with the same mean of their gradients, as
DistributedDataParallel does. So the workflow fedavg, which averages what sites send, is all that
the server does: its first model is the initial one, and the others are mean gradients.
"""

import argparse
import time

import torch
from data import Batches, corpus, in_rows
from model import GPT, optimizer_of

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
for name in ("rows", "warmup", "steps", "score_every"):
    parser.add_argument(f"--{name}", type=int)
args = parser.parse_args()

flare.init()
info = flare.system_info()
(texts, held_out), length = corpus(info["clients"]), info["model_args"]["length"]
net = GPT(**info["model_args"])
data = Batches(texts[info["site_index"]], args.rows, length, info["seed"])
optimizer, schedule = optimizer_of(net, args.lr, args.warmup, args.steps)
parameters = dict(net.named_parameters())

while flare.is_running():
    model = flare.receive()
    began = time.monotonic()
    step = model.current_round  # steps that were made before
    if step == 0:
        net.load_state_dict(model.params)
    else:
        for name, parameter in parameters.items():
            parameter.grad = model.params[name]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if info["site_index"] == 0 and args.score_every and step % args.score_every == 0:
            flare.log("held out", net.score(in_rows(held_out, length)[:200]), global_step=step)
    loss = net.loss(next(data))
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    metrics = {"train_loss": loss, "seconds": time.monotonic() - began}
    flare.send(flare.FLModel(params=gradients, metrics=metrics))
