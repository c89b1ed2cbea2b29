"""Downloads over channels that go wrong: the right bits or a typed error, never a hang."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
from faults import FAULTS, Faults, FaultyChannel
from nightly_cases import first_and_nightly

from flstream.errors import StreamingError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.memory import MemoryBody
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import pipe
from flstream.transport.tcp import TcpListener, dial

SEEDS = range(30)
AT_A_TIME = 6
MODEL = MemoryBody.of(
    {
        "large": np.random.default_rng(1).integers(0, 256, 150_000, dtype=np.uint8),
        **{f"small.{i}": np.arange(i, dtype=np.float32) for i in range(60)},
    }
)
BITS = b"".join(MODEL.views(0, MODEL.layout.nbytes))
# What there are few of in a download is hit more often.
RARE = {"dropped reply", "damaged request", "dropped request"}


def settings(seed):
    """Of every six: two pushed, two pulled, two native."""
    chunk_size = (2048, 4096, 0)[seed % 3]
    push = seed % 6 in (0, 1)
    return StreamSettings(chunk_size, 32768, 2, 20.0, ping_after=0.02, ping_timeout=0.3, push=push)


def fetch(receiver, token, seed, folder):
    """Download in one of the ways there are, and return the bits."""
    how = settings(seed)
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


@contextmanager
def over_pairs(service):
    """Channels to a service over pairs of sockets: a broken one is a lost process."""
    ours, theirs = pipe("server", "site-1")
    service.attach(ours, "site-1")
    with closing(theirs):
        yield (lambda: theirs), False


@contextmanager
def over_tcp(service):
    """Channels to a service over TCP, as many as it takes."""
    with TcpListener("127.0.0.1:0", lambda channel, _: service.attach(channel, "site-1")) as tcp:
        token = tcp.admit("site-1")
        yield (lambda: dial(tcp.address, token, "server")), True


def run(way, fault, seed, folder):
    """One run: what came of it, and whether anything went wrong on the way."""
    with DownloadService() as service, way(service) as (dialled, returns):
        how = settings(seed)
        ref = service.offer(MODEL, ["site-1"], push=how if how.push else None)
        rate = 0.3 if fault in RARE else 0.1
        faults = Faults(fault, seed, rate=rate, ends_within=len(BITS))

        def connect():
            return FaultyChannel(dialled(), faults)

        receiver = Receiver(connect(), "server", connect=connect if returns else None)
        with receiver:
            try:
                bits = fetch(receiver, ref.token, seed, folder)
            except StreamingError as error:
                return type(error).__name__, faults.hits
        assert bits == BITS
        return "right bits", faults.hits


def run_with_watchdog(way, fault, seed, folder):
    outcome = []
    thread = threading.Thread(
        target=lambda: outcome.append(run(way, fault, seed, folder)), daemon=True
    )
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), f"{fault}, seed {seed}: hangs"
    assert outcome, f"{fault}, seed {seed}: neither the right bits nor a typed error"
    return outcome[0]


def tally_of(way, fault, folder):
    # Several at a time: most of the time is spent waiting for a peer that does not answer.
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        outcomes = list(pool.map(lambda seed: run_with_watchdog(way, fault, seed, folder), SEEDS))
    tally = Counter(outcome for outcome, _ in outcomes)
    print(f"{fault}: {dict(tally)}, {sum(hits for _, hits in outcomes)} hits")
    assert sum(hits for _, hits in outcomes) >= len(SEEDS) / 2
    return tally


@first_and_nightly("fault", FAULTS, brief=4)
def test_over_a_pair_a_fault_ends_in_the_right_bits_or_in_a_typed_error(fault, tmp_path):
    tally = tally_of(over_pairs, fault, tmp_path)
    ends = {"right bits", "ChannelClosedError", "BrokenStreamError"}
    assert set(tally) <= ends | ({"DeadlineError"} if fault == "stall" else set())
    if fault == "flipped payload bit":
        # Damaged chunks are fetched again, and only a damaged message ends the connection.
        assert tally["right bits"] > len(SEEDS) / 2


@first_and_nightly("fault", [*FAULTS, "reset"], brief=2)
def test_over_tcp_every_fault_ends_in_the_right_bits(fault, tmp_path):
    assert tally_of(over_tcp, fault, tmp_path) == {"right bits": len(SEEDS)}
