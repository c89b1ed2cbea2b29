"""Tensors get other memory only where nobody else shows the old one."""

import torch
from torch import nn

from flstream.model.rebinding import owners_of, rebind


def test_tied_parameters_get_the_memory_and_what_somebody_else_shows_stays():
    net = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    net[1].weight = net[0].weight
    before, state = dict(net.named_parameters()), net.state_dict()
    views = {name: torch.full_like(each, 5) for name, each in state.items()}
    kept, place = net[0].weight.detach()[1], net[0].weight.data_ptr()
    assert rebind(state, owners_of(net), views) == {"0.bias", "1.bias"}
    assert net[0].weight.data_ptr() == place
    del kept
    assert {"0.weight", "1.weight"} <= rebind(state, owners_of(net), views)
    assert net[1].weight is net[0].weight is before["0.weight"]
    assert state["0.weight"].data_ptr() == state["1.weight"].data_ptr() != place
