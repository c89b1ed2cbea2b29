"""Codecs of whole models: what they have decoded they encode to the same bits."""

import numpy as np
import pytest
import torch

from flstream.codecs.block_codec import BLOCK, BlockPlace
from flstream.codecs.chain import chain_of
from flstream.codecs.lossy import LossyCodec
from flstream.codecs.quantised import Quantised
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.errors import CodecError
from flstream.job.codecs import CodecPlan, CodecSection
from flstream.model.digests import body_digest
from flstream.model.dtypes import LARGEST, SMALLEST, loaded, stored
from flstream.model.memory import BufferSource, MemoryBody
from tests.codecs.lossy_cases import Narrow, model, rounded
from tests.support import body_of


def codec_of(name, **args):
    return chain_of(CodecPlan([CodecSection(type=name, args=args)], ["norm"], of_models=True)).lossy


INT8 = codec_of("int8", group=64)
CODECS = {
    "bf16": codec_of("cast", to="bf16"),
    "f16": codec_of("cast", to="f16"),
    "int8": INT8,
    "int4": codec_of("int4", group=16),
}
MODEL = MemoryBody.of(model(3))
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


class Into:
    def __init__(self, layout):
        self.layout, self.body = layout, bytearray(layout.nbytes)

    def write(self, start, view):
        self.body[start : start + len(view)] = view


def written(codec, source, step=1 << 20):
    target, body = Into(source.layout), memoryview(body_of(source))
    writer = RoundedWriter(target, codec)
    for start, stop in source.layout.ranges(step):
        writer.write(start, body[start:stop])
    return BufferSource(source.layout, memoryview(target.body)), writer.digest


@pytest.mark.parametrize("step", [4 << 10, 100_000, 8 << 20])
@every_codec
def test_what_is_written_is_what_receivers_decode(codec, step):
    kept, digest = written(codec, MODEL, step)
    assert digest == body_digest(kept) == body_digest(rounded(codec, MODEL))
    received = codec.decode(codec.encode(kept), kept.layout)
    assert body_of(received) == body_of(kept) != body_of(MODEL)
    assert body_of(codec.encode(kept)) == body_of(codec.encode(MODEL))
    norm = MODEL.layout.by_name["norm.weight"]
    assert body_of(kept)[norm.start : norm.stop] == body_of(MODEL)[norm.start : norm.stop]


def test_a_walk_that_is_begun_again_leaves_nothing_of_the_first():
    body = memoryview(body_of(MODEL))
    writer = RoundedWriter(Into(MODEL.layout), INT8)
    writer.write(0, body[:123_456])
    writer.write(0, body)
    assert writer.digest == body_digest(rounded(INT8, MODEL))
    with pytest.raises(ValueError, match="do not follow"):
        writer.write(16, memoryview(bytes(16)))


@pytest.mark.parametrize("group", [2, 64])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", sorted(LARGEST))
def test_scales_are_the_same_the_second_time(dtype, bits, group):
    """Of numbers of any size, the smallest and the largest of the type among them."""
    codec, random = Quantised(bits, group, of_models=True), np.random.default_rng(7)
    low, high = np.log2(SMALLEST[dtype]), np.log2(LARGEST[dtype])
    place = BlockPlace("w", dtype, 0, 331)
    for number in range(120):
        edge = low + random.uniform(0, 12), high - random.uniform(0, 9), random.uniform(low, high)
        # Normal numbers of this size, cut to the type's largest.
        with np.errstate(over="ignore"):
            numbers = random.standard_normal(331) * np.exp2(min(edge[number % 3], 1020))
        numbers = np.clip(numbers, -LARGEST[dtype], LARGEST[dtype])
        if number % 5 == 0:
            numbers[number] = LARGEST[dtype]
        data = stored(dtype, numbers if dtype == "F64" else numbers.astype(np.float32))
        first = codec.encode(loaded(dtype, memoryview(data)), place)
        decoded = loaded(dtype, memoryview(stored(dtype, codec.decode(memoryview(first), place))))
        assert np.isfinite(decoded).all()
        assert codec.encode(decoded, place) == first


class Thirds(Narrow):
    """Gives numbers back smaller by a third, each time."""

    def encode(self, numbers, place):
        return super().encode(numbers * (2 / 3), place)


def test_a_codec_that_changes_what_it_has_decoded_or_decodes_an_infinity_is_refused():
    codec = LossyCodec(Thirds(), "mine.py:Thirds", is_own=True)
    with pytest.raises(CodecError, match=r"mine.py:Thirds changes numbers of tensor 'w' that it"):
        written(codec, MemoryBody.of({"w": torch.ones(1000)}))
    codec = LossyCodec(Narrow(), "mine.py:Narrow", is_own=True)
    numbers = torch.full((70_000,), -torch.inf)
    numbers[69_000] = 1e6
    message = r"mine.py:Narrow decodes 1000000.0, element 69000 of tensor 'w', as inf; have it"
    with pytest.raises(CodecError, match=message):
        written(codec, MemoryBody.of({"w": numbers}))
    numbers[69_000] = 1e4
    kept, _ = written(codec, MemoryBody.of({"w": numbers}))
    assert body_of(kept) == bytes(numbers.numpy())


@every_codec
def test_of_what_is_only_compared_blocks_that_cannot_be_encoded_are_zeros(codec):
    state = model(3)
    state["embed.weight"][-1, -1] = float("inf")
    bad = MemoryBody.of(state)
    compared = body_of(codec.encode(bad, block=codec.comparable_block))
    try:
        assert compared == body_of(codec.encode(bad))
    except CodecError:
        tensor = codec.coded(bad.layout)[1]["embed.weight"]
        start, stop = tensor.encoded_range((tensor.spec.elements - 1) // BLOCK)
        assert compared[start:stop] == bytes(stop - start)
        assert compared[:start] == body_of(codec.encode(MODEL))[:start]
