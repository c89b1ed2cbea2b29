"""Layouts as senders tell them: read once where they are the same, and refused by who sent them."""

import numpy as np
import pytest

from flstream.errors import ProtocolError
from flstream.model.memory import MemoryBody
from flstream.streaming import layouts
from flstream.streaming.layouts import layout_of_header


def header_of(count):
    arrays = {f"layers.{number}.weight": np.zeros(4, np.float32) for number in range(count)}
    return MemoryBody.of(arrays).layout.plain_header[8:]


def test_the_same_header_is_read_once_whoever_sends_it():
    first = layout_of_header(header_of(7), "site-1")
    assert layout_of_header(header_of(7), "site-2") is first
    assert layout_of_header(header_of(8), "site-1") != first


def test_a_large_header_is_not_kept(monkeypatch):
    monkeypatch.setattr(layouts, "_MOST_KEPT_BYTES", 100)
    first = layout_of_header(header_of(9), "site-1")
    again = layout_of_header(header_of(9), "site-1")
    assert again == first
    assert again is not first


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_a_header_that_is_none_is_the_senders_fault_each_time(monkeypatch, most):
    monkeypatch.setattr(layouts, "_MOST_KEPT_BYTES", most)
    for peer in ("site-1", "site-2"):
        with pytest.raises(ProtocolError, match=peer):
            layout_of_header(b"{", peer)
