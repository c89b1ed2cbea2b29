"""Training of LoRA factors around a base, which adds a residual where the workflow has one.

What is trained is rounded, so that no vector unit decides its bits.
"""

import torch
from model import Factors

import flstream.client as flare

SCALING = 2.0

flare.init()
info = flare.system_info()
net, base = Factors(**info["model_args"]), flare.base_model(scaling=SCALING)
layer, most, index = net.fc, net.fc.lora_A.out_features, info["site_index"]
rank = info["site_args"].get("rank", most)
generator = torch.Generator().manual_seed(index)
inputs = torch.zeros(4, base.fc.in_features)
columns = torch.randperm(base.fc.in_features, generator=generator)[:16]
inputs[:, columns] = torch.randint(-1, 2, (4, 16), generator=generator) / 4
aim = torch.randint(-64, 65, (4, base.fc.out_features), generator=generator) / 64


def distances():
    """How far the outputs of the adapted layer are from their targets."""
    noise = torch.randint(-8, 9, aim.shape) / 256
    change = inputs @ layer.lora_A.weight[:rank].T @ layer.lora_B.weight[:, :rank].T
    return base.fc(inputs) + SCALING * change - aim + noise


while flare.is_running():
    model = flare.receive()
    net.load_state_dict(flare.to_rank(flare.to_rank(model.params, rank), most))
    if flare.is_evaluate():
        near = (distances().detach().abs() < 0.5).sum().item() / aim.numel()
        flare.send(flare.FLModel(metrics={"accuracy": near}))
        continue
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0**-4)
    for _ in range(2):
        optimizer.zero_grad()
        (distances() ** 2).sum().backward()
        optimizer.step()
    trained = net.state_dict().items()
    params = {name: (value * 64).round().clamp(-64, 64) / 64 for name, value in trained}
    params = flare.to_rank(flare.to_rank(params, rank), most)
    flare.send(flare.FLModel(params, meta={"num_examples": 3 + index}))
