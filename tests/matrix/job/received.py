"""A script that never asks which task it has: its metrics score the model that it received."""

import nvflare.client as flare
from model import Net, accuracy, move_buffers, targets

flare.init()
while flare.is_running():
    model = flare.receive()
    net = Net(len(model.params["base"]))
    net.load_state_dict(model.params)
    index = int(flare.get_site_name().rpartition("-")[2])
    metrics = {"accuracy": accuracy(net, targets(net, index))}
    move_buffers(net, index)
    net.base.data += index / 64
    flare.send(flare.FLModel(params=net.state_dict(), metrics=metrics))
