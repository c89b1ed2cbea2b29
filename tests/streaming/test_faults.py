"""Downloads over channels that go wrong: the right bits or a typed error, never a hang."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from flstream.errors import StreamingError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.memory import MemoryBody
from flstream.streaming.download import download
from flstream.streaming.faults import FAULTS, FaultyChannel
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.transport.pipe import pipe

SEEDS = range(30)
AT_A_TIME = 6
MODEL = MemoryBody.of(
    {
        "large": np.random.default_rng(1).integers(0, 256, 150_000, dtype=np.uint8),
        **{f"small.{i}": np.arange(i, dtype=np.float32) for i in range(60)},
    }
)
BITS = b"".join(MODEL.views(0, MODEL.layout.nbytes))
# What ends by itself when the peer dies or hangs; everything else has to be repaired.
FATAL = {"death", "stall"}
# What there are few of in a download is hit more often.
RARE = {"dropped reply", "damaged request", "dropped request"}


def settings(fault, seed):
    """Of every six: two pushed, two pulled, two native."""
    chunk_size = (2048, 4096, 0)[seed % 3]
    timeout = 0.2 if fault == "stall" else 20.0
    push = seed % 6 in (0, 1)
    return StreamSettings(chunk_size, 32768, 2, timeout, probe_after=0.02, push=push)


def fetch(receiver, token, fault, seed, folder):
    """Download in one of the ways there are, and return the bits."""
    how = settings(fault, seed)
    if seed % 2 == 0:
        sink, _ = download(receiver, token, how, MemoryBody.allocate)
        return b"".join(sink.views(0, sink.layout.nbytes))
    if how.chunk_size and seed % 4 == 1:
        path = folder / f"{seed}.safetensors"
        sink, _ = download(receiver, token, how, lambda layout: FileSink(path, layout))
        sink.finish()
        source = FileSource(path)
        return bytes(source.views(0, source.layout.nbytes, Scratch())[0])
    remote = RemoteSource(receiver, token, how)
    if how.chunk_size == 0:
        return bytes(remote.receive_whole())
    pieces = [
        bytes(remote.views(start, stop, Scratch())[0])
        for start, stop in remote.layout.ranges(how.frame_size * 2)
    ]
    return b"".join(pieces)


def run(fault, seed, folder):
    """One run: what came of it, and whether anything went wrong on the way."""
    ours, theirs = pipe("server", "site-1")
    with DownloadService() as service, closing(theirs):
        service.attach(ours, "site-1")
        how = settings(fault, seed)
        ref = service.offer(MODEL, ["site-1"], push=how if how.push else None)
        rate = 0.3 if fault in RARE else 0.1
        channel = FaultyChannel(theirs, fault, seed, rate=rate, death_within=len(BITS))
        try:
            bits = fetch(Receiver(channel, "server"), ref.token, fault, seed, folder)
        except StreamingError as error:
            return type(error).__name__, channel.hits
        assert bits == BITS
        return "right bits", channel.hits


def run_with_watchdog(fault, seed, folder):
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(run(fault, seed, folder)), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), f"{fault}, seed {seed}: hangs"
    assert outcome, f"{fault}, seed {seed}: neither the right bits nor a typed error"
    return outcome[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_in_the_right_bits_or_in_a_typed_error_within_its_deadline(fault, tmp_path):
    # Several at a time: most of the time is spent waiting for a peer that does not answer.
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        outcomes = list(pool.map(lambda seed: run_with_watchdog(fault, seed, tmp_path), SEEDS))
    tally = Counter(outcome for outcome, _ in outcomes)
    print(f"{fault}: {dict(tally)}, {sum(hits for _, hits in outcomes)} hits")
    assert sum(hits for _, hits in outcomes) >= len(SEEDS) / 2
    if fault not in FATAL:
        assert tally["right bits"] == len(SEEDS)
    if fault == "stall":
        assert set(tally) <= {"right bits", "DeadlineError"}
    if fault == "death":
        assert set(tally) <= {"right bits", "ChannelClosedError"}
