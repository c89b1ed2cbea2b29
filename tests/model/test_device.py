"""Tensors on another device go through host memory, a range at a time."""

import pytest
import torch
from other_device import device
from support import as_bytes, body_of

from flstream.errors import LayoutError
from flstream.model import tensor_view
from flstream.model.copy import copy
from flstream.model.memory import MemoryBody

__all__ = ["device"]


def tensors():
    weight = torch.arange(3000.0).reshape(50, 60)
    return {
        "weight": weight,
        "tied": weight,
        "transposed": torch.arange(24.0).reshape(4, 6).t(),
        "half": torch.linspace(-1, 1, 7, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False, True]),
        "steps": torch.tensor(5),
        "empty": torch.zeros(0, 3),
        "conjugate": torch.complex(torch.ones(3), torch.ones(3)).conj(),
    }


@pytest.mark.parametrize("step", [16, 1000, 1 << 20])
def test_what_is_read_and_received_is_what_it_would_be_on_the_cpu(request, step):
    plain = MemoryBody.of(tensors())
    expected = body_of(plain)
    device = request.getfixturevalue("device")
    body = MemoryBody.of(tensors())
    assert body.layout == plain.layout
    assert body.layout.aliases == {"weight": "tied"}
    assert device.copies == 0
    assert body_of(body, step) == expected
    assert device.copies >= len(body.layout.tensors) - 1  # one of them is empty
    read = device.copies
    into = {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in tensors().items()}
    into["weight"] = into["tied"]
    copy(body, MemoryBody.over(into), step=step)
    assert device.copies > 2 * read
    assert device.largest <= step
    assert b"".join(as_bytes(into[spec.name]) for spec in plain.layout.tensors) == expected


def test_ranges_are_committed_in_any_order_and_changes_and_misfits_refused(device):
    weight = torch.zeros(8)
    assert tensor_view.is_elsewhere(weight)
    body = MemoryBody.of({"w": weight})
    assert body.changed() is None
    weight += 1
    assert "tensor 'w' was changed" in body.changed()
    with pytest.raises(LayoutError, match=r"'w' is not contiguous"):
        MemoryBody.over({"w": torch.zeros(4, 6).t()})
    with pytest.raises(LayoutError, match="'w' is lazily conjugated or negated"):
        MemoryBody.over({"w": torch.ones(3, dtype=torch.complex64).conj()})
    into = {"w": torch.zeros(64, dtype=torch.uint8)}
    sink = MemoryBody.over(into)
    first, second = sink.views(0, 16), sink.views(16, 64)
    first[0][:], second[0][:] = bytes([1]) * 16, bytes([2]) * 48
    assert not into["w"].any()
    sink.commit(16, 64)
    sink.commit(0, 16)
    assert into["w"].tolist() == [1] * 16 + [2] * 48
