"""Frames that a codec made smaller: whatever it or a sender makes of them, the bits are right."""

import numpy as np
import pytest
from harness import QUICK, fetch
from support import body_of

from flstream.codecs.lossy import LossyCodec
from flstream.codecs.quantised import Quantised
from flstream.errors import CodecError, StreamingError
from flstream.model.memory import MemoryBody
from flstream.streaming.coding import HEAD_BYTES, EncodedBytes
from flstream.streaming.download import AtHand, download
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.wire import ENCODED, FRAME, Fetch

BODY = MemoryBody.of({"w": np.arange(100_000, dtype=np.uint32).view(np.uint8), "v": np.ones(999)})
NOTHING = AtHand(lambda _: None)


class Halving:
    """Sends every second byte where the others follow from the model, which both sides have."""

    def __init__(self, base: str = "known", shift: int = 0) -> None:
        self.base = base
        self.asked: list[str] = []
        self.decoded = 0
        self._bits = body_of(BODY)
        self._shift = shift

    def encoder(self, name: str):
        self.asked.append(name)

        def encode(data, start, stop):
            return EncodedBytes(bytes(data[::2]), name == "known")

        return encode

    def decode(self, data, out, start, stop, *, has_base):
        assert has_base == (self.base == "known")
        self.decoded += 1
        out[:] = self._bits[start:stop]
        out[::2] = bytes(data)
        if self._shift:
            out[1] ^= self._shift


def fetched(harness, codec, *, decodes=True):
    receiver, watch = harness.watched()
    ref = harness.service.offer(BODY, ["site-1"], encoder=codec.encoder)
    at_hand = NOTHING._replace(decoder_for=lambda layout: codec) if decodes else NOTHING
    sink, cost = download(receiver, ref.token, QUICK, MemoryBody.allocate, at_hand=at_hand)
    assert body_of(sink) == body_of(BODY)
    assert ref.wait(20).ok
    return cost, watch, ref


def test_frames_come_encoded_to_those_who_can_give_them_back(harness):
    codec = Halving()
    cost, watch, ref = fetched(harness, codec)
    assert {frame.kind for frame in watch.frames} == {ENCODED}
    assert codec.decoded == len(watch.frames)
    assert set(codec.asked) == {"known"}
    expected = sum(-(-size // 2) + HEAD_BYTES for size in sizes())
    assert cost.bytes == ref.deliveries["site-1"].bytes == expected


def sizes():
    return [stop - start for start, stop in BODY.layout.ranges(QUICK.frame_size)]


class Useless(Halving):
    """A codec that makes nothing smaller."""

    def encoder(self, name):
        return lambda data, start, stop: EncodedBytes(bytes(data), has_base=False)


@pytest.mark.parametrize(("codec", "decodes"), [(Useless(), True), (Halving(), False)])
def test_frames_come_as_they_are_to_others_and_where_they_would_be_no_smaller(
    harness, codec, decodes
):
    _, watch, _ = fetched(harness, codec, decodes=decodes)
    assert {frame.kind for frame in watch.frames} == {FRAME}


@pytest.mark.parametrize("kind", ["another model", "an error"])
def test_what_does_not_decode_to_what_was_encoded_is_fetched_as_it_is(harness, kind):
    codec = Halving(shift=1)
    if kind == "an error":

        def fail(*_, **__):
            raise CodecError("it is not the compressed form")

        codec.decode = fail
    _, watch, _ = fetched(harness, codec)
    asked = [each for each in watch.requests if isinstance(each, Fetch)]
    assert asked[0].encoded
    # From the first one on that was not sound, nothing is asked for that is encoded.
    first_plain = next(index for index, each in enumerate(asked) if not each.encoded)
    assert not any(each.encoded for each in asked[first_plain:])


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), SystemExit(3)])
def test_an_encoder_of_whatever_errors_does_not_end_the_service(harness, error):
    class Failing(Halving):
        def encoder(self, name):
            def encode(data, start, stop):
                raise error

            return encode

    ref = harness.service.offer(BODY, ["site-1"], encoder=Failing().encoder)
    at_hand = NOTHING._replace(decoder_for=lambda layout: Halving())
    with pytest.raises(StreamingError, match="a frame cannot be encoded"):
        download(harness.receiver(), ref.token, QUICK, MemoryBody.allocate, at_hand=at_hand)
    fetched(harness, Halving())


def test_each_frame_is_encoded_once_and_long_ones_are_not(harness):
    class Counting(Halving):
        calls = 0

        def encoder(self, name):
            def encode(data, start, stop):
                Counting.calls += 1

            return encode

    fetched(harness, Counting())
    assert Counting.calls == len(sizes())
    long = MemoryBody.of({"w": np.zeros(20 << 20, np.uint8)})
    ref = harness.service.offer(long, ["site-1"], encoder=Counting().encoder)
    at_hand = NOTHING._replace(decoder_for=lambda layout: Halving())
    how = StreamSettings(chunk_size=16 << 20)
    download(harness.receiver(), ref.token, how, MemoryBody.allocate, at_hand=at_hand)
    assert Counting.calls == len(sizes()) + 1  # the last one has 4 MiB


def test_a_number_that_cannot_be_encoded_ends_the_download_of_its_receivers(harness):
    weight = np.zeros(100_000, np.float32)
    weight[99_000] = np.inf
    codec = LossyCodec(Quantised(8, 256), "int8", ())
    ref = harness.service.offer(codec.encode(MemoryBody.of({"w": weight})), ["site-1"])
    with pytest.raises(StreamingError, match="'w' has inf as element 99000"):
        fetch(harness.receiver(), ref.token)
