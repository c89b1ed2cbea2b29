"""The evaluator's script, where a row has one."""

from model import Net, accuracy, targets

import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    net = Net(len(model.params["base"]))
    net.load_state_dict(model.params)
    flare.send(flare.FLModel(metrics={"accuracy": accuracy(net, targets(net, 1))}))
