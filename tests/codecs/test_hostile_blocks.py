"""Encoded bodies from a peer that may send anything: refused by the tensor's name, or harmless."""

import struct
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import CodecError
from flstream.model.layout import Layout
from flstream.model.source import Scratch, views_of
from tests.codecs.lossy_cases import CODECS, Bytes, encoded, lossy

# Two blocks; the second is the last and shorter.
COUNT = 70_000
LAYOUT = Layout.of([("layer.weight", "F32", (COUNT,))])
NUMBERS = {"layer.weight": torch.randn(COUNT, generator=torch.Generator().manual_seed(0))}


def damaged(name, offset, data, block=1):
    """An encoded body with other bytes at an offset of a block."""
    codec = lossy(name)
    coded = encoded(name, NUMBERS)
    start, _ = codec.coded(LAYOUT)[1]["layer.weight"].encoded_range(block)
    body = bytearray(coded.data)
    body[start + offset : start + offset + len(data)] = data
    return codec.decode(Bytes(coded.layout, body), LAYOUT)


def refuses(source, flaw):
    with pytest.raises(
        CodecError, match=rf"elements 65536 to 69999 of tensor 'layer.weight' {flaw}"
    ):
        views_of(source, 0, LAYOUT.nbytes, Scratch())


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), -1.0])
@pytest.mark.parametrize("group", [0, 2])
def test_a_scale_that_is_no_scale_is_refused(name, scale, group):
    refuses(damaged(name, 4 * group, struct.pack("<f", scale)), f"have a scale of {scale}")


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_the_largest_scale_gives_finite_numbers(name):
    data = struct.pack("<f", 3.4028235e38) + bytes(64)
    (view,) = views_of(damaged(name, 0, data), 0, LAYOUT.nbytes, Scratch())
    assert np.isfinite(np.frombuffer(view, np.float32)).all()


@pytest.mark.parametrize(("name", "head"), [("topk", 0), ("ternary", 4)])
def test_places_outside_of_the_block_twice_or_in_disorder_are_refused(name, head):
    codec = CODECS[name]
    count = int(np.ceil(codec.fraction * (COUNT - 65_536)))
    last = struct.pack("<H", COUNT - 65_536)
    refuses(damaged(name, head + 2 * (count - 1), last), "have a number at place 4464 of 4464")
    refuses(damaged(name, head + 2 * (count - 1), b"\xff\xff"), "have a number at place 65535")
    refuses(damaged(name, head, bytes(4)), "have places that do not ascend")
    refuses(damaged(name, head, b"\x01\x00\x00\x00"), "have places that do not ascend")
    # One in the middle that is beyond the block cannot ascend to one inside.
    refuses(damaged(name, head + 2, b"\xff\xff"), "have places that do not ascend")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_of_topk_and_means_of_ternary_that_are_not_finite_are_refused(value):
    count = int(np.ceil(0.01 * (COUNT - 65_536)))
    number = struct.pack("<f", value)
    refuses(damaged("topk", 2 * count + 4, number), f"have a number that is {value}")
    refuses(damaged("ternary", 0, number), f"have a mean of {value}")
    refuses(damaged("ternary", 0, struct.pack("<f", -1.0)), "have a mean of -1.0")


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=50)
@given(st.data())
def test_any_bytes_are_refused_or_decoded_within_the_model(name, data):
    dtype = data.draw(st.sampled_from(["F64", "F32", "F16", "BF16", "F8_E4M3"]))
    layout = Layout.of([("w", dtype, (data.draw(st.integers(1, 400)),)), ("x", "U8", (9,))])
    codec = lossy(name)
    size = codec.encoded(layout).nbytes
    body = data.draw(st.binary(min_size=size, max_size=size))
    source = codec.decode(Bytes(codec.encoded(layout), body), layout)
    scratch = Scratch()
    scratch.take(layout.nbytes + 1)[-1] = 77
    with suppress(CodecError):
        (view,) = views_of(source, 0, layout.nbytes, scratch)
        assert len(view) == layout.nbytes
        assert bytes(view[-9:]) == body[-9:]
    assert scratch.take(layout.nbytes + 1)[-1] == 77
