"""The same between processes: what a peer's life and death look like from the other end."""

import multiprocessing
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil
from typing import Any

import peers
import pytest
import safetensors.torch
import torch
from harness import fetch
from support import IN_FILES, as_bytes, assert_same_tensors, every_kind, tensor

from flstream.errors import ChannelClosedError, DeadlineError
from flstream.model.checkpoint import write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import SocketChannel

HOW = StreamSettings(chunk_size=65536, request_size=262144, request_timeout=30)
# Not from a fork server: other tests start theirs in a way of its own.
CONTEXT = multiprocessing.get_context("spawn")
Start = Callable[..., tuple[SocketChannel, Any]]


def model() -> dict[str, torch.Tensor]:
    many = {f"small.{number}": tensor("BF16", (11,), number) for number in range(300)}
    return {**every_kind(IN_FILES), **many, "large": tensor("F32", (1 << 19,))}


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a peer: return our ends of its data pipe and of its pipe for reports."""
    started, ends = [], []

    def start(target: Callable[..., None], *args: Any) -> tuple[SocketChannel, Any]:
        ours, theirs = socket.socketpair()
        receiving, sending = CONTEXT.Pipe()
        process = CONTEXT.Process(target=target, args=(theirs, sending, *args))
        process.start()
        theirs.close()
        sending.close()
        channel = SocketChannel(ours, "peer")
        started.append(process)
        ends.extend((channel, receiving))
        return channel, receiving

    yield start
    for end in ends:
        end.close()
    for process in started:
        process.join(30)
        alive = process.is_alive()
        process.kill()
        process.join()
        process.close()
        assert not alive


def test_a_model_is_fetched_from_another_process_into_modules_and_memory(start, tmp_path):
    tensors = model()
    write_checkpoint(tmp_path / "model", MemoryBody.of(tensors))
    channel, reports = start(peers.offer_file, tmp_path / "model", None)
    own = MemoryBody.of({name: torch.empty_like(value) for name, value in tensors.items()})
    sink, stats = download(Receiver(channel, "peer"), reports.recv(), HOW, lambda layout: own)
    assert_same_tensors(sink.tensors, tensors)
    assert stats.chunks == ceil(own.layout.nbytes / HOW.chunk_size)
    assert stats.requests == ceil(own.layout.nbytes / HOW.request_size)
    assert reports.recv() == ("finished", "")


def test_another_process_fetches_models_into_files_one_after_another(start, tmp_path):
    large, small = model(), every_kind(IN_FILES)
    with DownloadService() as service:
        bodies = [MemoryBody.of(tensors) for tensors in (large, small, {})]
        refs = [service.offer(body, ["receiver"]) for body in bodies]
        stranger = service.offer(bodies[0], ["somebody else"])
        tokens = [ref.token for ref in (*refs, stranger)]
        channel, reports = start(peers.fetch_files, tokens, HOW, tmp_path, None)
        service.attach(channel, "receiver")
        for ref, body in zip(refs, bodies, strict=True):
            nbytes = body.layout.nbytes
            assert reports.recv() == (
                nbytes,
                ceil(nbytes / HOW.request_size),
                ceil(nbytes / HOW.chunk_size),
            )
            assert ref.wait(30).ok
        kind, sentence = reports.recv()
        assert kind == "RefusedError"
        assert "not on offer" in sentence
    assert_same_tensors(safetensors.torch.load_file(tmp_path / "received-0"), large)
    assert_same_tensors(safetensors.torch.load_file(tmp_path / "received-1"), small)


def test_a_sender_killed_in_the_middle_is_a_closed_channel(start, tmp_path):
    write_checkpoint(tmp_path / "model", MemoryBody.of(model()))
    channel, reports = start(peers.offer_file, tmp_path / "model", 1 << 20)
    with pytest.raises(ChannelClosedError, match="peer closed the channel"):
        fetch(Receiver(channel, "peer"), reports.recv(), HOW)


def test_a_receiver_killed_in_the_middle_settles_its_ref_and_nobody_elses(start, tmp_path):
    body = MemoryBody.of(model())
    with DownloadService() as service:
        ref, other = service.offer(body, ["receiver"]), service.offer(body, ["survivor"])
        channel, _ = start(peers.fetch_files, [ref.token], HOW, tmp_path, 1 << 20)
        service.attach(channel, "receiver")
        outcome = ref.wait(30)
        assert outcome.status == "aborted"
        assert "peer closed the channel; its process has ended or died" in outcome.reason
        assert ref.deliveries["receiver"].failure
        channel, reports = start(peers.fetch_files, [other.token], HOW, tmp_path, None)
        service.attach(channel, "survivor")
        assert other.wait(30).ok
        assert reports.recv()[0] == body.layout.nbytes  # reported once the file has its name
    loaded = safetensors.torch.load_file(tmp_path / "received-0")
    assert as_bytes(loaded["large"]) == as_bytes(body.tensors["large"])


def test_a_process_that_says_nothing_is_a_deadline_error(start):
    channel, reports = start(peers.stay_silent)
    how = replace(HOW, request_timeout=0.2, ping_after=0.05)
    with pytest.raises(DeadlineError, match=r"peer did not send an answer to Open within 0\.2 s"):
        fetch(Receiver(channel, "peer"), bytes(16), how)
    reports.send("enough")
