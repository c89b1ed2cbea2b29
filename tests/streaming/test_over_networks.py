"""Downloads over networks: connections break and come back, and dead links are found out.

A long frame over a slow link is no silence, and a distant peer is no dead one.
"""

import gc
import os
import socket
import threading
from contextlib import ExitStack, closing
from queue import Queue

import numpy as np
import pytest
import stranger
from harness import MODEL
from journal_support import a_job
from packets import BrokenError, greeting, message, read_packet

from flstream.errors import ChannelClosedError
from flstream.job.network_section import NetworkLink
from flstream.streaming import Channel, DownloadService, Receiver, Signal, StartToken, connection
from flstream.streaming import receiver as receiver_module
from flstream.streaming import service as service_module
from flstream.streaming.api import add_tensors, connect, download_tensors, listen
from flstream.streaming.settings import StreamSettings, stream_settings
from flstream.transport.channel import SMALL_BUFFER
from flstream.transport.link import LinkRelay


@pytest.fixture
def tcp():
    with ExitStack() as stack:
        service = stack.enter_context(DownloadService())
        yield service, stack.enter_context(listen(service, "127.0.0.1:0"))


def test_a_receiver_stays_declared_for_a_while_after_its_last_connection(tcp, monkeypatch):
    monkeypatch.setattr(service_module, "RECONNECT_SECONDS", 0.5)
    service, listener = tcp
    key = listener.admit("site-1")
    ref, alone = (add_tensors(service, MODEL, names) for names in (["site-1", "x"], ["site-1"]))
    for _ in range(2):  # it comes back in time
        with connect(listener.address, key) as receiver:
            list(download_tensors(receiver, bytes(16), optional=True))
        assert ref.wait(0.1).status == "waiting"
    assert ref.deliveries["site-1"].failure is None
    assert alone.wait(10).status == "aborted"
    assert "closed the channel" in ref.deliveries["site-1"].failure
    assert ref.outcome is None
    # Also what is offered later is lost to it, until it comes back.
    assert add_tensors(service, MODEL, ["site-1"]).wait(10).status == "aborted"
    with connect(listener.address, key) as receiver:
        # The service answers once it has it back, which is after ``connect`` has returned.
        download_tensors(receiver, bytes(16), optional=True)
        assert download_tensors(receiver, add_tensors(service, MODEL, ["site-1"]).id)[0].ok


def test_a_receiver_without_a_sign_of_life_is_dropped_and_one_that_beats_is_not(tcp, monkeypatch):
    monkeypatch.setattr(connection, "SILENT_SECONDS", 0.6)
    monkeypatch.setattr(service_module, "RECONNECT_SECONDS", 0.1)
    monkeypatch.setattr(receiver_module, "BEAT_SECONDS", 0.1)
    service, listener = tcp
    keys = [listener.admit(name) for name in ("beats", "hangs")]
    refs = [add_tensors(service, MODEL, [name]) for name in ("beats", "hangs")]
    hangs = stranger.dial(listener.address, keys[1].key)
    hangs.sendall(greeting() + message("Open", 1, token=refs[1].token))
    with hangs, connect(listener.address, keys[0]) as receiver:
        download_tensors(receiver, bytes(16), optional=True)
        outcome = refs[1].wait(10)
        assert "hangs: it gave no sign of life for 0.6 s" in outcome.reason
        assert refs[0].wait(0.5).status == "waiting"
        assert download_tensors(receiver, refs[0].id)[0].ok


def test_a_receiver_that_is_let_go_leaves_no_thread(tcp, monkeypatch):
    monkeypatch.setattr(receiver_module, "BEAT_SECONDS", 0.05)
    _, listener = tcp
    receiver = connect(listener.address, listener.admit("site-1"))
    beats = [each for each in threading.enumerate() if each.name == "beats"]
    assert beats
    channel = receiver.channel
    del receiver
    gc.collect()
    for each in beats:
        each.join(10)
        assert not each.is_alive()
    channel.close()


def test_a_receiver_has_no_more_connections_than_it_may(tcp):
    _, listener = tcp
    key, socks = listener.admit("site-1").key, []
    for _ in range(20):
        socks.append(stranger.dial(listener.address, key))
        socks[-1].sendall(greeting() + message("Ping", 1, token=bytes(16)))
        assert [read_packet(socks[-1]).message["type"] for _ in range(2)] == ["Hello", "Refused"]
    for number, sock in enumerate(socks):
        with sock:
            if number < 4:  # the oldest ones
                with pytest.raises(BrokenError):
                    read_packet(sock)
            else:
                sock.sendall(message("Ping", 2, token=bytes(16)))
                assert read_packet(sock).number == 2


def test_a_receiver_that_is_idle_comes_back_by_itself(tcp, monkeypatch):
    monkeypatch.setattr(receiver_module, "BEAT_SECONDS", 0.05)
    service, listener = tcp
    came, attach = Queue(), service.attach
    monkeypatch.setattr(service, "attach", lambda *who: (attach(*who), came.put(who[0])))
    with connect(listener.address, listener.admit("site-1")) as receiver:
        download_tensors(receiver, bytes(16), optional=True)
        ref = add_tensors(service, MODEL, ["site-1"])
        with socket.socket(fileno=os.dup(came.get(timeout=10).fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)
        assert came.get(timeout=10)
        assert download_tensors(receiver, ref.id)[0].ok


def test_a_receiver_whose_sender_was_away_for_long_comes_back_with_it(monkeypatch):
    monkeypatch.setattr(receiver_module, "RECONNECT_SECONDS", 0.2)
    key = StartToken.new()
    with DownloadService() as service, listen(service, "127.0.0.1:0") as listener:
        address = listener.address
        listener.admit("site-1", token=key)
        receiver = connect(address, key)
        download_tensors(receiver, bytes(16), optional=True)
    assert download_tensors(receiver, bytes(16), optional=True)[0].code == "sender gone"
    with DownloadService() as service, listen(service, address) as listener, receiver:
        listener.admit("site-1", token=key)
        ref = add_tensors(service, MODEL, ["site-1"])
        assert download_tensors(receiver, ref.id)[0].ok


def test_an_abort_of_the_receiver_ends_downloads_that_have_one_of_their_own(tcp):
    _, listener = tcp
    every, mine = Signal(), Signal()
    every.set()
    with connect(listener.address, listener.admit("site-1"), abort=every) as receiver:
        status, _ = download_tensors(receiver, bytes(16), abort_signal=mine, optional=True)
    assert status.code == "aborted"
    for signal in (every, mine):
        signal.close()


def fetch(link, nbytes, settings):
    """Download so many bytes over a link, and compare them."""
    sent = np.frombuffer(os.urandom(nbytes), np.uint8)
    ours, theirs = socket.socketpair()
    with (
        closing(LinkRelay({"site-1": link}, 0, "site-1")) as relay,
        closing(relay.channel(theirs, "server", "server")) as site,
        closing(Channel(ours, "site-1", buffer=SMALL_BUFFER)) as server,
        DownloadService() as service,
    ):
        service.attach(server, "site-1")
        ref = add_tensors(service, {"w": sent}, ["site-1"])
        with Receiver(site, "server") as receiver:
            _, received = download_tensors(receiver, ref.id, settings=settings)
            assert np.array_equal(received["w"], sent)


def test_a_long_frame_is_no_silence_and_a_peer_far_away_may_take_as_long_as_its_link():
    # Most of a second at 800 kbit/s, in which a byte comes every few milliseconds.
    fetch(NetworkLink(up=8e5, down=8e5), 75_000, StreamSettings(ping_after=0.1, ping_timeout=0.3))
    far = NetworkLink(latency=0.12)
    quick = StreamSettings(ping_after=0.05, ping_timeout=0.1)
    with pytest.raises(ChannelClosedError, match="whether it lives"):
        fetch(far, 1_000, quick)
    fetch(far, 1_000, StreamSettings(ping_after=0.05, ping_timeout=0.1 + far.silence))
    plain = stream_settings(a_job(), "numpy")
    network = {"latency": "1 s", "sites": {"site-2": {"latency": "4 s"}}}
    far = stream_settings(a_job(network=network), "numpy")
    assert plain.ping_timeout == StreamSettings().ping_timeout
    assert far.ping_timeout == plain.ping_timeout + 8
