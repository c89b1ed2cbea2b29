"""Adds numbers of the site's own to the adapters, or to all tensors, in place."""

import argparse

import torch
from model import empty

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--size")
parser.add_argument("--trained", choices=["adapters", "all"])
options = parser.parse_args()
flare.init()
number = int(flare.get_site_name().removeprefix("site-"))
net = empty(options.size)
tensors = net.state_dict()

while flare.is_running():
    model = flare.receive(into=net)
    for name, tensor in tensors.items():
        if "adapter" in name:
            tensor += torch.randn(tensor.shape) / number
        elif options.trained == "all":
            tensor += number / 8
    flare.send(flare.FLModel(params=tensors))
