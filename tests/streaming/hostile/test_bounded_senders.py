"""Receivers that ask for much: the sender grows no further, and serves the others in turn."""

from dataclasses import replace

import numpy as np
import pytest
from nightly_cases import first_and_nightly

from flstream.streaming.api import add_arrays, download_arrays
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.transport.sockets import pipe

MIB = 1 << 20
QUICK = StreamSettings(chunk_size=MIB, request_timeout=60)


@pytest.fixture
def honest(attackers):
    """A receiver that keeps to the rules, in this process."""
    ours, theirs = pipe("server", "site-2")
    attackers.service.attach(ours, "site-2")
    yield Receiver(theirs, "server")
    theirs.close()


def test_layouts_that_nobody_reads_do_not_wait_in_memory(attackers, honest, watch_growth):
    # The layout of so many arrays has 1 MiB.
    arrays = {f"{'a' * 30}{number}": np.zeros(1, np.uint8) for number in range(10_000)}
    ref = add_arrays(attackers.service, arrays, ["site-1"])
    growth = watch_growth()
    attacker = attackers.start("site-1", "opens", ref.token, 2 * MIB)
    assert attacker.says().startswith("sent")
    offered = add_arrays(attackers.service, {"b": np.ones(MIB, np.uint8)}, ["site-2"])
    status, got = download_arrays(honest, offered.token, settings=QUICK)
    assert status.ok
    assert got["b"].sum() == MIB
    assert growth.stop() < 64 * MIB


def test_digests_that_nobody_reads_are_taken_in_turn(attackers, honest, watch_growth):
    array = np.ones(64 * MIB, np.uint8)
    ref = add_arrays(attackers.service, {"a": array}, ["site-1"])
    growth = watch_growth()
    attacker = attackers.start("site-1", "digests", ref.token, array.nbytes, 250)
    assert attacker.says().startswith("asked")
    # More than a minute of work is asked for. Between two pieces of it the other one is served.
    offered = add_arrays(attackers.service, {"b": np.ones(64 * MIB, np.uint8)}, ["site-2"])
    status, got = download_arrays(honest, offered.token, settings=QUICK)
    assert status.ok
    assert got["b"].nbytes == 64 * MIB
    assert ref.outcome is None
    # What was downloaded is in this process, too, and what was offered.
    assert growth.stop() < (64 + 2 * 64) * MIB


def test_two_channels_of_one_name_do_not_end_each_others_downloads(attackers):
    service = attackers.service
    pairs = [pipe("server", "site-4") for _ in range(2)]
    for ours, _ in pairs:
        service.attach(ours, "site-4")
    ref = add_arrays(service, {"a": np.ones(1000, np.uint8)}, ["site-4"])
    pairs[0][1].close()
    service.offer(ref.source, []).abort("only to have the service look at its channels")
    status, _ = download_arrays(Receiver(pairs[1][1], "server"), ref.token, settings=QUICK)
    assert status.ok
    assert ref.wait(30).ok
    # Once the last one has ended, so has the receiver.
    again = add_arrays(service, {"a": np.ones(1000, np.uint8)}, ["site-4"])
    pairs[1][1].close()
    assert again.wait(30).status == "aborted"


def test_a_model_in_one_message_is_no_longer_than_the_sender_allows(attackers, honest):
    array = np.ones((96, MIB), np.uint8).T  # which has to be gathered
    ref = add_arrays(attackers.service, {"a": array}, ["site-2"])
    status, _ = download_arrays(
        honest, ref.token, settings=replace(QUICK, chunk_size=0), optional=True
    )
    assert status.code == "refused"
    assert "more than 67108864 bytes" in status.reason
    assert "Limits.scratch_bytes" in status.reason


def test_a_receiver_does_not_choose_what_the_sender_allocates(attackers, honest, watch_growth):
    array = np.ones((128, MIB), np.uint8).T
    ref = add_arrays(attackers.service, {"a": array}, ["site-1"])
    growth = watch_growth()
    attacker = attackers.start("site-1", "gathers", ref.token, array.nbytes)
    assert attacker.says().startswith("asked")
    offered = add_arrays(attackers.service, {"b": np.ones(MIB, np.uint8)}, ["site-2"])
    status, _ = download_arrays(honest, offered.token, settings=QUICK)
    assert status.ok
    assert growth.stop() < 64 * MIB


INSISTS = {
    "layouts": 0,
    "digests": 1,
    "digests of 16 bytes": 2,
    "frames of 16 bytes": 3,
    "one frame that is called off": 4,
    "pings": 5,
    "closings": 6,
    "beats": 7,
    "greetings": 8,
}


@first_and_nightly("kind", INSISTS.values(), ids=INSISTS, brief=3)
def test_a_receiver_that_asks_without_end_has_its_turn_as_others_have(
    attackers, honest, watch_growth, kind
):
    array = np.ones((16, 4 * MIB), np.uint8).T
    ref = add_arrays(attackers.service, {"a": array}, ["site-1", "site-3"])
    growth = watch_growth()
    attacker = attackers.start("site-1", "insists", ref.token, array.nbytes, kind)
    assert attacker.says() == "asked"
    offered = add_arrays(attackers.service, {"b": np.ones(MIB, np.uint8)}, ["site-2"])
    assert download_arrays(honest, offered.token, settings=QUICK)[0].ok
    assert growth.stop() < 64 * MIB
