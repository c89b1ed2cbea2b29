"""A script may train tensors on another device: they are received into and sent as they are."""

import pytest
import torch
from other_device import device

__all__ = ["device"]

SCRIPT = """
import torch
import flstream.client as flare

net = torch.nn.Linear(300, 200)
flare.init()
while flare.is_running():
    flare.receive(into=net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 1
    flare.send(flare.FLModel(params=net.state_dict()))
"""


@pytest.mark.parametrize("sites", [["site-3"], ["site-1", "site-2"]])
def test_tensors_of_another_device_travel_through_the_host(script, device, sites):
    given = {"weight": torch.randn(200, 300), "bias": torch.randn(200)}
    with script(SCRIPT, site=sites[0] if len(sites) == 1 else None) as serving:
        for number in (1, 2):
            answer = serving.server.train(given, *sites, round_number=number)
            updates = serving.server.updates(answer)
            assert len(updates) == len(sites)
            for update in updates:
                assert torch.equal(update["weight"], given["weight"] + 1)
                assert torch.equal(update["bias"], given["bias"] + 1)
    assert device.copies > 4
