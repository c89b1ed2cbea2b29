"""A device that makes its copies late, and all torch tensors as its own."""

import threading

import pytest
import torch

from flstream.model import tensor_view


class LateDevice:
    """A device that makes a thread's copies when that thread waits for them, and not before."""

    def __init__(self):
        self._of_thread = threading.local()
        self.copies = 0
        self.largest = 0

    def begin(self, source, target):
        self.copies += 1
        self.largest = max(self.largest, target.numel())
        self._of_thread.pending = [*getattr(self._of_thread, "pending", ()), (source, target)]

    def wait(self, _):
        for source, target in getattr(self._of_thread, "pending", ()):
            target.copy_(source)
        self._of_thread.pending = []


@pytest.fixture
def late(monkeypatch):
    """All torch tensors count as those of such a device."""
    device = LateDevice()
    monkeypatch.setattr(tensor_view, "is_elsewhere", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(tensor_view, "begin_copy", device.begin)
    monkeypatch.setattr(tensor_view, "wait_for_copies", device.wait)
    return device
