"""A script that uses all that a workflow may offer, and keeps a state between its trainings."""

import json
import sys

import torch
from model import Net, accuracy, loss_of, move_buffers, targets

import flstream.client as flare
from flstream.telemetry.halts import halt_at

flare.init()
info = flare.system_info()
index = info["site_index"]
net = Net(**info["model_args"])
aims = targets(net, index)


def train():
    """Two steps, which the site's state counts; returns the control, and the count before."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5)
    if "--offload" in sys.argv:
        flare.offloaded(optimizer, "moments")
    flare.restore_optimizer(optimizer)
    control = flare.ScaffoldControl(net, model) if "control" in model.meta else None
    regulariser = flare.DynamicRegulariser(net)
    path = flare.get_state_dir() / "kept.json"
    trained = json.loads(path.read_text()) if path.exists() else 0
    for _ in range(2):
        loss = loss_of(net, aims) + flare.proximal_term(net) + regulariser.term()
        optimizer.zero_grad()
        loss.backward()
        if control is not None:
            control.correct()
        optimizer.step()
        if "--offload" in sys.argv:
            halt_at("half")
    move_buffers(net, index + trained)
    path.write_text(json.dumps(trained % 7 + 1))
    return control, trained


while flare.is_running():
    model = flare.receive(into=net)
    flare.personal(net)
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": accuracy(net, aims)}))
        continue
    if "ditto_lambda" in model.meta:
        with flare.own_model(net):
            train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    control, trained = train()
    meta = {"num_examples": 3 + index}
    if control is not None:
        meta["control"] = control.difference(0.125)
    params, kind = net.state_dict(), "FULL"
    if "--diff" in sys.argv:
        params, kind = {name: params[name] - before[name] for name in params}, "DIFF"
    answer = flare.FLModel(params=params, params_type=kind, metrics={"kept": trained}, meta=meta)
    flare.send(answer)
