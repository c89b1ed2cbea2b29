"""Layouts as senders tell them: read once where they are the same, and refused by who sent them."""

import numpy as np
import pytest

from flstream.errors import ProtocolError
from flstream.model.memory import MemoryBody
from flstream.streaming.opening import layout_of_header

# Longer than any header that is kept.
LONG = 3 << 20


def header_of(count, name="weight"):
    arrays = {f"layers.{number}.{name}": np.zeros(4, np.float32) for number in range(count)}
    return MemoryBody.of(arrays).layout.plain_header[8:]


def test_the_same_header_is_read_once_whoever_sends_it_unless_it_is_large():
    first = layout_of_header(header_of(7), "site-1")
    assert layout_of_header(header_of(7), "site-2") is first
    assert layout_of_header(header_of(8), "site-1") != first
    large = header_of(9, "w" * (LONG // 9))
    again = layout_of_header(large, "site-1"), layout_of_header(large, "site-1")
    assert again[0] == again[1]
    assert again[0] is not again[1]


@pytest.mark.parametrize("header", [b"{", b"{" + b" " * LONG], ids=["kept", "long"])
def test_a_header_that_is_none_is_the_senders_fault_each_time(header):
    for peer in ("site-1", "site-2"):
        with pytest.raises(ProtocolError, match=peer):
            layout_of_header(header, peer)
