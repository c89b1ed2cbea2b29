"""A device that has all torch tensors as its own."""

import pytest
import torch

from flstream.model import tensor_view


class OtherDevice:
    """Counts the copies between a device and the host."""

    def __init__(self):
        self.copies = 0
        self.largest = 0

    def host_tensor(self, view):
        self.copies += 1
        self.largest = max(self.largest, len(view))
        return torch.frombuffer(view, dtype=torch.uint8)


@pytest.fixture
def device(monkeypatch):
    """All torch tensors count as those of such a device."""
    device = OtherDevice()
    monkeypatch.setattr(tensor_view, "is_elsewhere", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(tensor_view, "host_tensor", device.host_tensor)
    return device
