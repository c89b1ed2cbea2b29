"""Any source to any sink, whatever befalls the way: the right bits or an error that names the peer.

One service has two receivers, which come back and back. What befalls them is a script, so that
Hypothesis finds the shortest one that breaks something.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import liars
import numpy as np
import pytest
import stranger
import torch
from harness import received
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st
from nightly_cases import first_and_nightly
from packet_relay import FAULTS, Harm, Relay, Script
from support import as_bytes

from flstream.codecs import frames
from flstream.codecs.frames import FrameCodec, FrameCoder, Zstd
from flstream.errors import FlstreamError, LayoutError, RefusedError, StreamingError
from flstream.job.network_section import NetworkLink
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.copy import copy
from flstream.model.mapped import MappedModel
from flstream.model.memory import MemoryBody
from flstream.streaming import Channel, DownloadService, Receiver, Ref, StreamSettings, api
from flstream.streaming import receiver as receiver_module
from flstream.streaming.download import RemoteSource
from flstream.transport.link import LinkRelay
from tests.codecs.lossy_cases import lossy

FRAMES = FrameCodec(("delta", "shuffle"), Zstd(), "zstd")
LOSSY = ("cast bf16", "int8", "topk", "ternary")
WAYS = ("tcp", "pair", "link")
IN_MEMORY, IN_FILES = ("tensors", "arrays"), ("file", "mapped")
SELECTED = ["steps", "w"]
REFUSALS = ("withdrawn", "for others", "invented", "changed", "cut short", "settled", "misfit")
# A hang is one after this time. Whatever ends, ends within a second or two.
HANG_SECONDS = 30

Bits = Mapping[str, bytes]


def bits_of(tensors: Mapping[str, Any]) -> Bits:
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else as_bytes(value)
        for name, value in tensors.items()
    }


def model(size: str, version: int) -> dict[str, torch.Tensor]:
    """A model that fits into one answer or does not; versions of it differ in few places."""
    rows = {"small": 3, "large": 120}[size]  # fewer numbers than torch gives to several threads
    random = torch.Generator().manual_seed(7)
    weight = torch.randn(rows, 250, generator=random)
    weight[version % rows] += version
    return {
        "w": weight,
        "half": torch.randn(40, 3 * rows, generator=random).half().t(),
        "tied": weight,
        "empty": torch.empty(0, 3),
        "steps": torch.tensor(version),
    }


class Offered(NamedTuple):
    """What is on offer, and what is to arrive."""

    ref: Ref
    bits: Bits  # as they are to arrive
    size: str  # of the model
    decoder_for: Any = lambda layout: None  # what decodes frames that are encoded
    decode: Any = None  # what decodes a model that was encoded with a loss
    is_coded: bool = False


class Site:
    """A receiver of the service, which comes back on another connection once one is broken."""

    def __init__(self, machine: Transfers, name: str) -> None:
        self.name = name
        self.script = Script()
        self._machine = machine
        self._relays: list[Relay] = []
        self._links: list[LinkRelay] = []
        self.receiver = self._new_receiver()

    def _new_receiver(self) -> Receiver:
        again = self._connect if self._machine.way == "tcp" else None
        return Receiver(self._connect(), "server", connect=again)

    def _connect(self) -> Channel:
        machine = self._machine
        if machine.way == "tcp":
            far = stranger.dial(machine.listener.address, machine.keys[self.name].key)
            with socket.create_server(("127.0.0.1", 0)) as server:
                ours = socket.create_connection(server.getsockname())
                near, _ = server.accept()
            for end in (ours, near):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            serves, far = socket.socketpair()
            near, ours = socket.socketpair()
            machine.service.attach(Channel(serves, self.name), self.name)
        self._relays.append(Relay(near, far, self.script))
        if machine.way == "link":
            link = NetworkLink(up=2e8, down=2e8, latency=0.001, jitter=0.001, loss=0.01)
            self._links.append(LinkRelay({self.name: link}, 1, self.name))
            return self._links[-1].channel(ours, "server", "data")
        return Channel(ours, "server", beats=machine.way == "tcp")

    def come_back(self) -> None:
        self.close()
        self.receiver = self._new_receiver()

    def close(self) -> None:
        self.script.begin([])
        self.receiver.close()
        for relay in (*self._relays, *self._links):
            relay.close()
        self._relays, self._links = [], []


class Transfer(NamedTuple):
    size: str  # of what is offered
    sink: str  # where it goes
    chunk_size: int  # 0 for all at once
    harms: list[Harm]  # what befalls it


# What can be hit: frames come down alone.
HIT = st.sampled_from([("down", True), ("up", False), ("down", False)])
HARMS = st.builds(
    lambda fault, hit, place, seed: Harm(fault, *hit, place, seed),
    st.sampled_from(list(FAULTS)),
    HIT,
    st.integers(0, 6),
    st.integers(0, 999),
)
TRANSFERS = st.builds(
    Transfer,
    st.sampled_from(["large", "small"]),
    st.sampled_from(["memory", "in place", "selected", "file", "resumed", "held"]),
    st.sampled_from([4096, 256, 65_536, 0]),
    st.lists(HARMS, max_size=3),
)


class Transfers(stateful.RuleBasedStateMachine):
    """A service, two receivers of it, and what they have got so far."""

    def __init__(self) -> None:
        super().__init__()
        self.threads_before, self.descriptors_before = set(threading.enumerate()), descriptors()
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.sites: list[Site] = []
        self.version = 0
        self.kept: set[str] = set()
        self.held: MemoryBody | None = None
        self.hits: list[Harm] = []

        self.service = DownloadService()
        self.listener = api.listen(self.service, "127.0.0.1:0")
        self.keys = {name: self.listener.admit(name) for name in ("site-1", "site-2")}

    @stateful.initialize(way=st.sampled_from([*WAYS, "tcp"]))
    def open(self, way: str) -> None:
        self.way = way
        self.sites = [Site(self, name) for name in self.keys]

    # What is offered.
    def offered(self, kind: str, size: str, names: list[str], **options: Any) -> Offered:
        self.version += 1
        tensors = model(size, self.version)
        path = self.folder / "offered.safetensors"
        match kind:
            case "tensors" | "arrays":
                if kind == "arrays":
                    tensors = {name: value.numpy() for name, value in tensors.items()}
                ref = api.add_tensors(self.service, tensors, names, **options)
            case "file" | "mapped":
                path.unlink(missing_ok=True)
                write_checkpoint(path, MemoryBody.of(tensors))
                source = FileSource(path)
                if kind == "mapped":
                    with path.open("rb") as file:
                        source = MappedModel(file.fileno(), str(path))
                ref = self.service.offer(source, names, **options)
            case "encoded":
                body, base = MemoryBody.of(tensors), MemoryBody.of(model(size, 0))
                encoder = frames.encoder_for(FRAMES, body.layout, {"known": base})
                ref = self.service.offer(body, names, encoder=encoder, **options)
                decoder_for = partial(FrameCoder, FRAMES, source=base, name="known")
                return Offered(ref, bits_of(tensors), size, decoder_for, is_coded=True)
            case "payload":
                value = {"model": tensors, "round": self.version}
                ref = api.add_payload(self.service, value, names, **options)
            case _:
                codec, source = lossy(kind), MemoryBody.of(tensors)
                sent = codec.encode(source)
                ref = self.service.offer(sent, names, **options)
                decode = partial(codec.decode, layout=source.layout)
                due = MemoryBody.allocate(source.layout)
                copy(decode(sent), due)
                return Offered(ref, bits_of(due.tensors), size, decode=decode, is_coded=True)
        return Offered(ref, bits_of(tensors), size)

    # Where it goes.
    def fetch(self, offered: Offered, site: Site, sink: str, how: StreamSettings) -> Bits:
        receiver, token = site.receiver, offered.ref.id
        match "decoded" if offered.is_coded else sink:
            case "memory":
                return bits_of(api.download_tensors(receiver, token, settings=how)[1])
            case "in place":
                into = model(offered.size, 0)
                into["half"] = into["half"].contiguous()
                api.download_tensors(receiver, token, settings=how, into=into)
                return bits_of(into)
            case "selected":
                got = api.download_tensors(receiver, token, settings=how, select=SELECTED)
                return bits_of(got[1])
            case "file" | "resumed":
                path = self.folder / f"{site.name}-{sink}.safetensors"
                resume = sink == "resumed"
                if resume:
                    self.kept.add(f"{path.name}.tmp")
                api.download_file(receiver, token, path, settings=how, resume=resume)
                self.kept.discard(f"{path.name}.tmp")
                source = FileSource(path)
                body = MemoryBody.allocate(source.layout)
                copy(source, body)
                path.unlink()
                return bits_of(body.tensors)
            case "decoded":
                held = None
            case _:  # what this process has of it already need not come
                held = self.held
        remote = RemoteSource(receiver, offered.ref.token, how, digests=held is not None)
        body = received(remote, held=held, decode=offered.decode, decoder_for=offered.decoder_for)
        if offered.decode is None:
            self.held = body
        return bits_of(body.tensors)

    def within_its_time(self, call: Callable[[], Bits]) -> Bits | FlstreamError:
        """What comes of it, on a thread that is not to hang."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(call())
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(HANG_SECONDS)
        assert not thread.is_alive(), "it hangs"
        if isinstance(outcome[0], BaseException) and not isinstance(outcome[0], FlstreamError):
            raise outcome[0]
        return outcome[0]

    def transfer(self, kind: str, planned: Transfer) -> None:
        """One receiver's download goes wrong in places; the other one's is to bear it."""
        size, sink, chunk_size, harms = planned
        offered = self.offered(kind, size, ["site-1", "site-2"])
        due = offered.bits
        if sink == "selected" and kind in (*IN_MEMORY, *IN_FILES):  # of others all comes
            due = {name: due[name] for name in SELECTED}
        how = StreamSettings(chunk_size, 20.0)
        if not are_mended(harms):  # something may never come
            how = replace(how, ping_after=0.03, ping_timeout=0.2)
        # What is decoded comes in frames.
        if not chunk_size and kind in LOSSY:
            how = replace(how, chunk_size=16_384)

        def fetch(site: Site) -> Bits:
            if kind == "payload":
                value = api.download_payload(site.receiver, offered.ref.id, settings=how)[1]
                assert value["round"] == self.version
                return bits_of(value["model"])
            return self.fetch(offered, site, sink, how)

        harmed, other = self.sites
        harmed.script.begin(harms)
        outcome = self.within_its_time(lambda: fetch(harmed))
        hits = harmed.script.hits
        self.hits = hits
        mended, failed = are_mended(hits), isinstance(outcome, FlstreamError)
        if failed:
            assert isinstance(outcome, StreamingError)
            assert "server" in str(outcome)
            # Who is asked so soon whether it lives may only be busy.
            is_busy = how.ping_timeout < 1 and "whether it lives" in str(outcome)
            assert is_busy or not mended, outcome
            assert self.way != "tcp", outcome
            assert not offered.ref.deliveries[harmed.name].has_it
        else:
            assert_bits(outcome, due)
        # Over a pair, a fault may break the connection at the end of a download that has succeeded.
        is_lost = failed or (self.way != "tcp" and not mended)
        if is_lost:
            harmed.close()
            self.service.detach(harmed.name)
        harmed.script.begin([])
        result = self.within_its_time(lambda: fetch(other))
        assert not isinstance(result, FlstreamError), result
        assert_bits(result, due)
        assert offered.ref.deliveries[other.name].has_it
        ended = offered.ref.wait(HANG_SECONDS)
        if failed:
            assert ended.status == "aborted"
            assert harmed.name in ended.reason
        else:
            assert ended.ok or is_lost, ended
        if is_lost:
            harmed.come_back()

    # A step is one of the rules, each as often as any other: four of six are transfers.
    transfer_memory = stateful.rule(kind=st.sampled_from(IN_MEMORY), planned=TRANSFERS)(transfer)
    transfer_file = stateful.rule(kind=st.sampled_from(IN_FILES), planned=TRANSFERS)(transfer)
    transfer_coded = stateful.rule(kind=st.sampled_from(["encoded", *LOSSY]), planned=TRANSFERS)(
        transfer
    )
    transfer_payload = stateful.rule(kind=st.just("payload"), planned=TRANSFERS)(transfer)

    @stateful.rule(case=st.sampled_from(REFUSALS), sink=st.sampled_from(["memory", "file"]))
    def refuse(self, case: str, sink: str) -> None:
        """What is not for a receiver, or no longer, is refused; and nothing of it is sent."""
        site, other = self.sites
        names = [other.name] if case == "for others" else [site.name]
        # Of a small model all bytes come, also to who has no place for them.
        size = "small" if case == "misfit" else "large"
        offered = self.offered("file" if case == "cut short" else "tensors", size, names)
        match case:
            case "changed":
                offered.ref.source.tensors["w"].add_(1)
            case "withdrawn":
                offered.ref.abort("no more")
            case "settled":
                offered.ref.receiver_done(site.name, None)
            case "cut short":
                with (self.folder / "offered.safetensors").open("r+b") as file:
                    file.truncate(1000)
            case "invented":
                offered.ref.abort("no more")
                offered = offered._replace(ref=Ref(MemoryBody.of({}), [site.name]))
        how = StreamSettings(4096)
        if case == "misfit":
            into = {"w": torch.zeros(3)}
            call = partial(api.download_tensors, site.receiver, offered.ref.id, into=into)
            outcome = self.within_its_time(call)
            assert isinstance(outcome, LayoutError), outcome
            assert "what server offers does not fit" in str(outcome)
            assert f"{site.name}: what server offers" in offered.ref.wait(HANG_SECONDS).reason
            return
        outcome = self.within_its_time(lambda: self.fetch(offered, site, sink, how))
        assert isinstance(outcome, RefusedError), outcome
        assert "server refused" in str(outcome)
        delivery = offered.ref.deliveries.get(site.name)
        assert delivery is None or not delivery.has_it or case == "settled"
        if case == "for others":  # whatever the one said that it was not for
            got = self.within_its_time(lambda: self.fetch(offered, other, "memory", how))
            assert not isinstance(got, FlstreamError), got
            assert offered.ref.wait(HANG_SECONDS).ok
        offered.ref.abort("the test is over")

    @stateful.rule(
        case=st.sampled_from(list(liars.SENDERS)), sink=st.sampled_from(["in place", "file"])
    )
    def hear_a_sender(self, case: str, sink: str) -> None:
        """A sender that does not keep to the rules costs its receiver an error that names it."""
        how = StreamSettings(4096, 20.0)
        if case == "silence":
            how = replace(how, ping_after=0.05, ping_timeout=0.1)
        elif case in liars.WAITED_FOR:  # which answer in time whether they live
            how = replace(how, request_timeout=0.2, ping_after=0.05)
        path = self.folder / "lied.safetensors"
        into = {"w": torch.full((liars.NBYTES,), 7, dtype=torch.uint8)}
        most = patch.object(receiver_module, "_MOST_REPEATED", 1 << 20)
        with most, liars.receiver_of(case) as (receiver, _):

            def fetch() -> Bits:
                if sink == "file":
                    api.download_file(receiver, bytes(16), path, settings=how)
                else:
                    api.download_tensors(receiver, bytes(16), settings=how, into=into)
                return {}

            outcome = self.within_its_time(fetch)
        if case == "bytes that never match":
            assert "bytes 0 to 4096 from liar (tensor 'w') came 6 times" in str(outcome)
        fits_a_file = sink == "file" and case == "a layout that does not fit"
        if case == "the truth" or fits_a_file:
            assert outcome == {}
            path.unlink(missing_ok=True)
        else:
            assert isinstance(outcome, FlstreamError)
            assert "liar" in str(outcome)
            assert type(outcome).__name__ in liars.SENDERS[case], outcome
            # Nothing that is not what a digest vouches for is ever written.
            assert set(into["w"].tolist()) <= {7, *liars.BYTES}

    @stateful.invariant()
    def no_file_is_left(self) -> None:
        assert {path.name for path in self.folder.iterdir()} <= {"offered.safetensors", *self.kept}

    def teardown(self) -> None:
        for site in self.sites:
            site.close()
        self.listener.close()
        self.service.close()
        shutil.rmtree(self.folder)
        self.held = None
        if sys.exc_info()[0] is None:  # an error would keep what it passed through
            self.expect_nothing_left()

    def expect_nothing_left(self) -> None:
        for thread in set(threading.enumerate()) - self.threads_before:
            thread.join(HANG_SECONDS)
            assert not thread.is_alive(), f"{thread.name} is left"
        gc.collect()
        left = descriptors() - self.descriptors_before
        assert not left, f"descriptors are left: {left}"


def are_mended(harms: list[Harm]) -> bool:
    """Whether all of them are made good without a new connection."""
    return all(
        harm.fault == "slow" or (harm.fault == "payload flipped" and harm.of_frames)
        for harm in harms
    )


def assert_bits(got: Bits, due: Bits) -> None:
    assert set(got) == set(due)
    for name, data in got.items():
        assert data == due[name], f"{name} has other bits"


def descriptors() -> set[tuple[str, str]]:
    """The open descriptors of this process, and what they are of."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


@pytest.fixture(scope="module")
def frozen():
    gc.collect()
    gc.freeze()  # what is there by now need not be looked through at the end of each example
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
@pytest.mark.hypothesis
def test_whatever_befalls_a_transfer_its_bits_are_right_or_an_error_names_the_peer():
    # What each liar, fault and refusal comes to is tested below, so that some examples do by day.
    most = settings().max_examples
    examples = {"max_examples": most if most > 25 else 10, "stateful_step_count": 8}
    how = settings(**examples, suppress_health_check=list(HealthCheck))  # it may be slow
    stateful.run_state_machine_as_test(Transfers, settings=how)


@pytest.fixture
def machine(frozen):
    machine = Transfers()
    machine.open(way="tcp")
    yield machine
    machine.teardown()


@first_and_nightly("kind", ["tensors", "file", "int8", "payload"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_borne_over_connections_that_come_back(machine, kind, fault):
    requests = [("up", False, place) for place in range(2 if kind == "int8" else 3)]
    for hit in (("down", True, 4), ("down", False, 1), *requests):
        harm = Harm(fault, *hit, seed=len(fault))
        machine.transfer(kind, Transfer("large", "memory", 4096, [harm]))
        assert machine.hits == [harm]


@pytest.mark.parametrize("case", liars.SENDERS)
def test_only_the_sender_that_keeps_to_the_rules_is_believed(machine, case):
    machine.hear_a_sender(case=case, sink="in place")


@pytest.mark.parametrize("case", REFUSALS)
def test_every_refusal_has_its_reason(machine, case):
    machine.refuse(case=case, sink="memory")
