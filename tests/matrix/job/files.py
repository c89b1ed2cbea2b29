"""Training with the model in a file: a site reads it, and writes what it has trained, in place."""

import torch
from model import Net, accuracy, loss_of, move_buffers, targets

import flstream.client as flare
from flstream.telemetry.halts import halt_at

flare.init()
info = flare.system_info()
net, index = Net(**info["model_args"]), info["site_index"]
aims = targets(net, index)
while flare.is_running():
    model = flare.receive(file="model.safetensors")
    answer = flare.FLModel(meta={"num_examples": 3 + index})
    with flare.edit(model.file) as tensors:
        net.load_state_dict(dict(tensors))
        if flare.is_evaluate():
            answer.metrics = {"accuracy": accuracy(net, aims)}
        else:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
            loss_of(net, aims).backward()
            optimizer.step()
            optimizer.zero_grad()
            move_buffers(net, index)
            for name, value in net.state_dict().items():
                tensors[name] = value
                halt_at("half")
            answer.file = model.file
    flare.send(answer)
