"""FedProx's term: its value, its gradient, and mistakes that would make it vanish."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flstream.client as flare
from flstream.errors import ClientError


def received(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@given(mu=st.floats(0, 10), seed=st.integers(0, 99), by=st.floats(-2, 2))
@settings(max_examples=25, deadline=None)
def test_it_is_half_mu_times_the_squared_distance_and_pulls_back_by_mu(mu, seed, by):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).double()
    origin = received(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += by * torch.randn_like(parameter)
    term = flare.proximal_term(net, origin, mu)
    distance = sum(((p - origin[n]) ** 2).sum().item() for n, p in net.named_parameters())
    assert term.shape == ()
    assert term.item() == pytest.approx(mu / 2 * distance)
    term.backward()
    for name, parameter in net.named_parameters():
        assert torch.allclose(parameter.grad, mu * (parameter - origin[name]))


def test_arrays_will_do_and_buffers_and_frozen_parameters_do_not_count():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    origin = {name: value.numpy().copy() for name, value in net.state_dict().items()}
    net[0].bias.requires_grad_(False)
    with torch.no_grad():
        net[0].bias += 5
        net[1].running_mean += 5
        net[1].weight += 2
    assert flare.proximal_term(net, origin, 1.0).item() == 4.0


def test_half_floats_do_not_overflow_and_tied_parameters_count_once():
    net = torch.nn.Linear(1, 1, bias=False).half()
    origin = {"weight": np.zeros((1, 1), np.float16)}
    torch.nn.init.constant_(net.weight, 1000.0)
    term = flare.proximal_term(net, origin, 2.0)
    assert (term.dtype, term.item()) == (torch.float32, 1_000_000.0)
    first, second = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
    second.weight = first.weight
    origin = received(torch.nn.Sequential(first, second))
    with torch.no_grad():
        first.weight += 1
    tied = flare.proximal_term(torch.nn.Sequential(first, second), origin, 2.0)
    assert tied.item() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("params", "mu", "sentence"),
    [
        (None, 0.1, r"'weight' shares its memory .* clone what was"),  # so it never differs
        ({}, 0.1, "parameter 'weight' is not in the global model"),
        ({"weight": torch.zeros(4)}, 0.1, r"'weight' has shape \[2, 2\], but \[4\]"),
        ({"weight": torch.zeros(2, 2)}, -1.0, "mu = -1.0; it must be 0 or more"),
        ({"weight": torch.zeros(2, 2)}, float("nan"), "mu = nan"),
    ],
)
def test_what_is_wrong_is_named(params, mu, sentence):
    net = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(ClientError, match=sentence):
        flare.proximal_term(net, net.state_dict() if params is None else params, mu)
    assert flare.proximal_term(torch.nn.ReLU(), {}, 1.0).item() == 0.0
