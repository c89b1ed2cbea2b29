"""Training of an adapter around a base that all sites share, and that nobody writes to."""

import torch
from model import Adapter, targets

import flstream.client as flare
from flstream.telemetry.halts import halt_at

flare.init()
info = flare.system_info()
net, base, index = Adapter(**info["model_args"]), flare.base_model(), info["site_index"]
aim = targets(base, index)[0]


def distances():
    """How far the base is from its targets, with the adapter added to each part of it."""
    noise = torch.randint(-8, 9, aim.shape) / 256
    return (base.base + net.adapter.repeat(8) - aim + noise).view(8, -1)


while flare.is_running():
    flare.receive(into=net)
    if flare.is_evaluate():
        near = (distances().detach().abs() < 0.5).sum().item() / aim.numel()
        flare.send(flare.FLModel(metrics={"accuracy": near}))
        continue
    optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
    for _ in range(2):
        optimizer.zero_grad()
        (distances() ** 2).sum(0).div(16).sum().backward()
        halt_at("half")
        optimizer.step()
    flare.send(flare.FLModel(net.state_dict(), meta={"num_examples": 3 + index}))
