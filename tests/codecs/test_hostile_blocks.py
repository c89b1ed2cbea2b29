"""Encoded bodies from a peer that may send anything: refused by the tensor's name, or harmless."""

import math
import struct
from contextlib import suppress
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import CodecError
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody
from flstream.model.source import Scratch, views_of
from tests.codecs.lossy_cases import CODECS, lossy
from tests.support import body_of

# Two blocks; the second is the last and shorter.
COUNT, LAST = 70_000, 70_000 - 65_536
NUMBERS = torch.randn(COUNT, generator=torch.Generator().manual_seed(0))
MODEL = MemoryBody.of({"layer.weight": NUMBERS})


def damaged(name, offset, data):
    """The body of an encoded form with other bytes at an offset of the last block."""
    codec = lossy(name)
    layout, coded = codec.coded(MODEL.layout)
    body = bytearray(body_of(codec.encode(MODEL)))
    start = coded["layer.weight"].encoded_range(1)[0] + offset
    body[start : start + len(data)] = data
    return body_of(codec.decode(BufferSource(layout, memoryview(body)), MODEL.layout))


def flaws():
    """Codecs, offsets in the last block, bytes there, and what is wrong with them."""
    for value in (float("nan"), float("inf"), -float("inf"), -1.0):
        number = struct.pack("<f", value)
        for name, group in product(("int8", "int4"), (0, 2)):
            yield name, 4 * group, number, f"a scale of {value}"
        yield "ternary", 0, number, f"a mean of {value}"
        if value != -1.0:
            yield "topk", 2 * math.ceil(0.01 * LAST) + 4, number, f"a number that is {value}"
    for name, head in (("topk", 0), ("ternary", 4)):
        end = head + 2 * math.ceil(CODECS[name].fraction * LAST)
        yield name, end - 2, struct.pack("<H", LAST), "a number at place 4464 of 4464"
        yield name, end - 2, b"\xff\xff", "a number at place 65535"
        # Twice, in disorder, and one in the middle that is beyond the block.
        for offset, places in ((head, bytes(4)), (head, b"\1\0\0\0"), (head + 2, b"\xff\xff")):
            yield name, offset, places, "places that do not ascend"


@pytest.mark.parametrize(("name", "offset", "data", "flaw"), [*flaws()])
def test_bytes_that_a_codec_never_writes_are_refused_by_their_place(name, offset, data, flaw):
    message = rf"elements 65536 to 69999 of tensor 'layer.weight' have {flaw}"
    with pytest.raises(CodecError, match=message):
        damaged(name, offset, data)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_the_largest_scale_gives_finite_numbers(name):
    data = struct.pack("<f", 3.4028235e38) + bytes(64)
    assert np.isfinite(np.frombuffer(damaged(name, 0, data), np.float32)).all()


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=50)
@given(st.data())
def test_any_bytes_are_refused_or_decoded_within_the_model(name, data):
    dtype = data.draw(st.sampled_from(["F64", "F32", "F16", "BF16", "F8_E4M3"]))
    layout = Layout.of([("w", dtype, (data.draw(st.integers(1, 400)),)), ("x", "U8", (9,))])
    codec = lossy(name)
    sent = codec.encoded(layout)
    body = data.draw(st.binary(min_size=sent.nbytes, max_size=sent.nbytes))
    source = codec.decode(BufferSource(sent, memoryview(body)), layout)
    scratch = Scratch()
    scratch.take(layout.nbytes + 1)[-1] = 77
    with suppress(CodecError):
        (view,) = views_of(source, 0, layout.nbytes, scratch)
        assert len(view) == layout.nbytes
        assert bytes(view[-9:]) == body[-9:]
    assert scratch.take(layout.nbytes + 1)[-1] == 77
