"""Tensors get other memory only where nobody else shows the old one."""

import pytest
import torch
from torch import nn

from flstream.model.rebinding import ModuleState, owners_of, rebind


def views_of(state):
    return {name: torch.full_like(each, 5) for name, each in state.items()}


def test_a_modules_parameters_and_buffers_get_the_memory_and_stay_the_same_objects():
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before, state = dict(net.named_parameters()), net.state_dict()
    views = views_of(state)
    assert rebind(state, owners_of(net), views) == set(state)
    for name, parameter in net.named_parameters():
        assert parameter is before[name]
        assert parameter.data_ptr() == views[name].data_ptr() == state[name].data_ptr()
    assert net[1].running_mean.data_ptr() == views["1.running_mean"].data_ptr()


def test_an_optimizer_goes_on_with_the_parameters_that_it_has():
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = net.state_dict()
    views = views_of(state)
    rebind(state, owners_of(net), views)
    optimizer.step()
    assert net.weight.ne(5).all()
    assert net.weight.data_ptr() == views["weight"].data_ptr()


def test_tied_parameters_stay_tied():
    net = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    net[1].weight = net[0].weight
    state = net.state_dict()
    assert rebind(state, owners_of(net), views_of(state)) == set(state)
    assert net[1].weight is net[0].weight
    assert state["0.weight"].data_ptr() == state["1.weight"].data_ptr()


def test_parameters_that_share_memory_stay_together():
    net = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    net[1].weight = nn.Parameter(net[0].weight.data)
    state = net.state_dict()
    rebind(state, owners_of(net), {"0.weight": torch.zeros(4, 4)})
    assert net[1].weight.data_ptr() == net[0].weight.data_ptr() == state["1.weight"].data_ptr()


def other_shape(net):
    return net.weight.detach().t()


def part(net):
    return net.weight.detach()[1]


def array(net):
    return net.weight.detach().numpy()


def state_dict(net):
    return net.state_dict()


@pytest.mark.parametrize("take", [other_shape, part, array, state_dict])
def test_what_somebody_else_shows_is_left_where_it_is(take):
    net = nn.Linear(4, 4, bias=False)
    kept, place = take(net), net.weight.data_ptr()
    state = net.state_dict()
    assert rebind(state, owners_of(net), views_of(state)) == set()
    assert net.weight.data_ptr() == place
    del kept
    assert rebind(state, owners_of(net), views_of(state)) == {"weight"}


def test_a_state_dict_alone_is_left_where_its_module_is():
    net = nn.Linear(4, 4)
    state = net.state_dict()
    assert rebind(state, owners_of(state), views_of(state)) == set()
    assert rebind(state, owners_of(ModuleState(net, state)), views_of(state)) == set(state)


def test_tensors_of_nobody_get_the_memory():
    state = {"w": torch.zeros(4)}
    assert rebind(state, [], views_of(state)) == {"w"}
    assert state["w"].eq(5).all()


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.zeros(4, 4).t(), id="not contiguous"),
        pytest.param(torch.zeros(4, dtype=torch.float64), id="other kind"),
        pytest.param(torch.zeros(5), id="other shape"),
        pytest.param(torch.zeros(4).share_memory_(), id="shared with processes"),
        pytest.param(torch.zeros(4, requires_grad=True) * 2, id="in a graph"),
    ],
)
def test_tensors_that_cannot_be_views_are_left_alone(tensor):
    place = tensor.data_ptr()
    assert rebind({"w": tensor}, [], {"w": torch.ones(4)}) == set()
    assert tensor.data_ptr() == place
