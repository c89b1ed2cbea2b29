"""Downloads over slow links: a long frame is no silence, and a distant peer is no dead one."""

import os

import numpy as np
import pytest
from journal_support import a_job

from flstream.errors import ChannelClosedError
from flstream.job.link import NetworkLink
from flstream.model.memory import MemoryBody
from flstream.server.stream_settings import stream_settings
from flstream.streaming.download import RemoteSource, download
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import StreamSettings
from flstream.transport.link import emulated_pipe


def fetch(link, nbytes, settings):
    """Download a body of so many bytes over a link, and compare it."""
    sent = np.frombuffer(os.urandom(nbytes), np.uint8)
    with emulated_pipe("server", "site-1", link) as (server, site), DownloadService() as service:
        service.attach(server, "site-1")
        ref = service.offer(MemoryBody.of({"w": sent}), ["site-1"])
        with Receiver(site, "server") as receiver:
            body = download(RemoteSource(receiver, ref.token, settings), MemoryBody.allocate)
            assert np.array_equal(body.tensors["w"], sent)


def test_a_frame_that_takes_longer_than_a_peer_may_be_silent_arrives():
    """Most of a second at 800 kbit/s, in which a byte comes every few milliseconds."""
    settings = StreamSettings(ping_after=0.1, ping_timeout=0.3)
    fetch(NetworkLink(up=8e5, down=8e5), 75_000, settings)


def test_a_peer_that_is_far_away_may_take_as_long_as_its_link():
    far = NetworkLink(latency=0.12)
    quick = StreamSettings(ping_after=0.05, ping_timeout=0.1)
    with pytest.raises(ChannelClosedError, match="whether it lives"):
        fetch(far, 1_000, quick)
    fetch(far, 1_000, StreamSettings(ping_after=0.05, ping_timeout=0.1 + far.silence))


def test_jobs_over_emulated_links_wait_for_the_farthest_site():
    plain = stream_settings(a_job(), "numpy")
    network = {"latency": "1 s", "sites": {"site-2": {"latency": "4 s"}}}
    far = stream_settings(a_job(network=network), "numpy")
    assert plain.ping_timeout == StreamSettings().ping_timeout
    assert far.ping_timeout == plain.ping_timeout + 8
