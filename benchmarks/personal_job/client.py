"""Trains on numbers of the site's own, with all that a workflow may ask of a script."""

import torch
from model import Net
from torch.nn.functional import cross_entropy

import flstream.client as flare

flare.init()
info = flare.system_info()
width, index = info["model_args"]["width"], info["site_index"]
net = Net(width)
own = torch.Generator().manual_seed(index)
inputs = torch.randn(64, width, generator=own)
labels = (inputs[:, 0] * (-1) ** index > 0).long()
while flare.is_running():
    model = flare.receive(into=net)
    if flare.is_evaluate():
        with torch.no_grad():
            loss = cross_entropy(net(inputs), labels).item()
        flare.send(flare.FLModel(metrics={"loss": loss}))
        continue
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    flare.restore_optimizer(optimizer)
    regulariser = flare.DynamicRegulariser(net)
    for batch in torch.randperm(64).split(32):
        loss = cross_entropy(net(inputs[batch]), labels[batch])
        loss = loss + flare.proximal_term(net) + regulariser.term()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    flare.send(flare.FLModel(params=net.state_dict(), meta={"num_examples": 3 + index}))
