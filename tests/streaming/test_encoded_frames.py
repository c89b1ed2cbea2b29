"""Frames that a codec made smaller: whatever it or a sender makes of them, the bits are right."""

import numpy as np
import pytest
from harness import QUICK
from support import body_of

from flstream.codecs.frames import FrameCodec, FrameCoder
from flstream.errors import CodecError, StreamingError
from flstream.model.memory import MemoryBody
from flstream.streaming.coding import HEAD
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import ENCODED, FRAME, Fetch

BODY = MemoryBody.of({"w": np.arange(100_000, dtype=np.uint32).view(np.uint8), "v": np.ones(999)})
SIZES = [stop - start for start, stop in BODY.layout.ranges(QUICK.chunk_size)]


def halved(data, start, stop):
    return bytes(data[::2])


class Halving:
    """Sends every second byte where the others follow from the model, which both sides have."""

    base = "known"

    def __init__(self, encode=halved, error=None, shift=0) -> None:
        self.asked: list[str] = []
        self.decoded = 0
        self._encode = encode
        self._error = error
        self._shift = shift

    def encoder(self, name: str):
        self.asked.append(name)
        return self

    def encode(self, data, start, stop):
        return self._encode(data, start, stop)

    def decode(self, data, out, start, stop, *, has_base):
        assert has_base
        self.decoded += 1
        if self._error is not None:
            raise self._error
        out[:] = body_of(BODY)[start:stop]
        out[::2] = bytes(data)
        out[1] ^= self._shift


def fetched(harness, codec, *, decodes=True, body=BODY, how=QUICK, returns=True):
    receiver, watch = harness.watched(returns=returns)
    decoding = {"decoder_for": lambda layout: codec} if decodes else {}
    sink, cost, ref = harness.fetched(
        body, how, receiver=receiver, encoder=codec.encoder, **decoding
    )
    assert body_of(sink) == body_of(body)
    return cost, watch, ref


@pytest.mark.parametrize(
    ("encode", "decodes"), [(lambda data, *_: bytes(data), True), (halved, False)]
)
def test_frames_come_as_they_are_to_others_and_where_that_is_no_longer(harness, encode, decodes):
    _, watch, _ = fetched(harness, Halving(encode), decodes=decodes)
    assert {frame.kind for frame in watch.frames} == {FRAME}


@pytest.mark.parametrize("returns", [False, True], ids=["pair", "connects again"])
@pytest.mark.parametrize("error", [None, CodecError("it is not the compressed form")])
def test_what_does_not_decode_to_what_was_encoded_is_fetched_as_it_is(harness, error, returns):
    _, watch, _ = fetched(harness, Halving(error=error, shift=1), returns=returns)
    asked = [each for each in watch.requests if isinstance(each, Fetch)]
    assert asked[0].encoded
    # From the first one on that was not sound, nothing is asked for that is encoded.
    first_plain = next(index for index, each in enumerate(asked) if not each.encoded)
    assert not any(each.encoded for each in asked[first_plain:])


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), SystemExit(3)])
def test_an_encoder_of_whatever_errors_does_not_end_the_service(harness, error):
    class Failing(Halving):
        def compress(self, data):
            raise error

        def encoder(self, name):
            return FrameCoder(FrameCodec((), self, "mine.py:Failing"), BODY.layout)

    with pytest.raises(StreamingError, match=r"mine.py:Failing raised .* at bytes 0 to 4096"):
        fetched(harness, Failing())
    fetched(harness, Halving())


def test_frames_come_encoded_each_once_to_those_who_decode_and_long_ones_as_they_are(harness):
    calls = []

    def count(data, start, stop):
        calls.append(stop - start)
        return data

    fetched(harness, Halving(count))
    assert calls == SIZES
    calls.clear()
    long = MemoryBody.of({"w": np.zeros(20 << 20, np.uint8)})
    fetched(harness, Halving(count), body=long, how=StreamSettings(chunk_size=16 << 20))
    assert calls == [4 << 20]
    codec = Halving()
    cost, watch, ref = fetched(harness, codec)
    assert {frame.kind for frame in watch.frames} == {ENCODED}
    assert codec.decoded == len(watch.frames)
    assert set(codec.asked) == {"known"}
    expected = sum(-(-size // 2) + HEAD.size for size in SIZES)
    assert cost.bytes == ref.deliveries["site-1"].bytes == expected
