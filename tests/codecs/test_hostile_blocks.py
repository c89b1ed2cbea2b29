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

from flstream.aggregation.update import CollectedUpdate, Reading
from flstream.aggregation.update_body import LocalBody
from flstream.codecs.chain import CodecChain, UpdateForm, chain_of
from flstream.errors import CodecError, UpdateRefusedError
from flstream.job.codecs import CodecPlan, CodecSection
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody
from flstream.model.source import Scratch, views_of
from tests.codecs.lossy_cases import CODECS, lossy
from tests.support import body_of, tensor

# Two blocks; the second is the last and shorter.
COUNT, LAST = 70_000, 70_000 - 65_536
NUMBERS = torch.randn(COUNT, generator=torch.Generator().manual_seed(0))
LAYER = MemoryBody.of({"layer.weight": NUMBERS})


def damaged(name, offset, data):
    """The body of an encoded form with other bytes at an offset of the last block."""
    codec = lossy(name)
    layout, coded = codec.coded(LAYER.layout)
    body = bytearray(body_of(codec.encode(LAYER)))
    start = coded["layer.weight"].encoded_range(1)[0] + offset
    body[start : start + len(data)] = data
    return body_of(codec.decode(BufferSource(layout, memoryview(body)), LAYER.layout))


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


EMBED = tensor("F32", (300, 100))
MODEL = MemoryBody.of({"embed": EMBED, "head": EMBED, "x": tensor("F32", (400,))})
INT8 = chain_of(CodecPlan([CodecSection(type="int8", args={"group": 64})]))
FORM = UpdateForm(MODEL, INT8)


def read(sent, params_type):
    update = CollectedUpdate("site-1", LocalBody(sent), FORM, 1.0, params_type)
    Reading(update, MODEL.layout, 1 << 20).read(0, MODEL.layout.nbytes, Scratch())


def test_what_the_codec_never_writes_is_refused_by_the_site_s_name():
    with pytest.raises(UpdateRefusedError, match=r"site-1 does not fit the model: .*'embed'"):
        FORM.expect_fit("site-1", MODEL.layout, partial=False)
    UpdateForm(MODEL, CodecChain()).expect_fit("site-1", MODEL.layout, partial=False)
    layout = INT8.lossy.encoded(MODEL.layout)
    body = np.full(layout.nbytes, 255, np.uint8)  # scales that are NaN
    with pytest.raises(UpdateRefusedError, match=r"site-1 cannot be decoded: .*'embed'"):
        read(BufferSource(layout, body.data), "DIFF")


@pytest.mark.parametrize("partial", [True, False])
def test_a_further_name_of_a_tensor_that_is_not_there_is_refused_by_the_site_s_name(partial):
    """A peer may state any layout: ``head`` as another name of ``x``, without ``embed``."""
    layout = Layout.of([("x", "U32", (120,))], {"head": "x"})
    with pytest.raises(UpdateRefusedError, match="site-1 does not fit the model"):
        FORM.expect_fit("site-1", layout, partial=partial)
    with pytest.raises(UpdateRefusedError, match="the update of site-1 cannot be decoded"):
        read(BufferSource(layout, memoryview(bytearray(layout.nbytes))), "FULL")
