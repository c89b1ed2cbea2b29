"""Adds noise and a momentum that the site keeps from one training to the next."""

import json

import torch

import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"mean": model.params["w"].double().mean().item()}))
        continue
    state = flare.get_state_dir() / "momentum.json"
    momentum = json.loads(state.read_text())["momentum"] if state.exists() else 0.0
    momentum = 0.9 * momentum + torch.randn(()).item()
    # The round is for damage.py, which has to know what training a state is of.
    state.write_text(json.dumps({"round": model.current_round + 1, "momentum": momentum}))
    model.params["w"] += 0.01 * torch.randn(model.params["w"].shape) + 0.001 * momentum
    flare.send(flare.FLModel(params=model.params, meta={"num_examples": 3}))
