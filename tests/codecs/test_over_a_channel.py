"""An encoded body through the downloader: to a receiver that decodes it while it comes."""

from dataclasses import replace

import pytest
import torch

from flstream.codecs.error_feedback import encode_with_feedback
from flstream.errors import StreamingError
from flstream.model.copy import copy
from flstream.model.memory import MemoryBody
from flstream.streaming.remote import RemoteSource
from tests.codecs.lossy_cases import CODECS, lossy, model
from tests.streaming.harness import QUICK, fetch, flip, open_harness
from tests.support import body_of


def received(codec, receiver, token, settings, layout, base=None):
    """A model in memory, decoded while its encoded form is fetched."""
    remote = RemoteSource(receiver, token, settings)
    sink = MemoryBody.allocate(layout)
    copy(codec.decode(remote, layout, settings.frame_size, base), sink, step=99_984)
    remote.close()
    return sink


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("chunk", [4096, 2 << 20])
def test_what_is_decoded_on_arrival_is_what_the_sender_keeps(name, chunk):
    source, codec = MemoryBody.of(model()), lossy(name, "norm")
    settings = replace(QUICK, chunk_size=chunk, request_size=4 * chunk)
    with open_harness() as harness:
        for base in (None, MemoryBody.of(model(1))):
            encoded = codec.encode(source, base)
            ref = harness.service.offer(encoded, ["site-1"], stall_timeout=30)
            receiver = harness.receiver("site-1")
            found = received(codec, receiver, ref.token, settings, source.layout, base)
            due = codec.decode(encoded, source.layout, base=base)
            assert body_of(found) == body_of(due)
            assert ref.outcome.status == "finished"


def test_a_chunk_that_came_damaged_is_encoded_again_to_the_same_bytes(tmp_path):
    source, codec = MemoryBody.of(model()), lossy("topk, a third")
    sent = encode_with_feedback(
        source, codec, tmp_path / "sent", before=None, after=tmp_path / "after"
    )
    for encoded in (codec.encode(source), sent):
        damaged = set()

        def damage(header, packet, damaged=damaged):
            if header.start % (3 * 4096) == 0 and header.start not in damaged:
                damaged.add(header.start)
                flip(packet)

        with open_harness() as harness:
            ref = harness.service.offer(encoded, ["site-1"], stall_timeout=30)
            receiver, _ = harness.watched(on_frame=damage)
            found = received(codec, receiver, ref.token, QUICK, source.layout)
            assert body_of(found) == body_of(codec.rounded(source))
            assert len(damaged) > 10


def test_a_number_that_cannot_be_encoded_ends_the_download_of_its_receivers():
    wrong = torch.zeros(100_000)
    wrong[99_000] = float("inf")
    codec = lossy("int8")
    source = MemoryBody.of({"w": wrong})
    with open_harness() as harness:
        ref = harness.service.offer(codec.encode(source), ["site-1"], stall_timeout=30)
        with pytest.raises(StreamingError, match="'w' has inf as element 99000"):
            fetch(harness.receiver("site-1"), ref.token)
