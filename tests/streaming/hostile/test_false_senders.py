"""Senders that state too much, talk without end or send for ever: their receivers bear it."""

import re
from dataclasses import replace

import pytest
from nightly_cases import first_and_nightly

from flstream.streaming.api import download_arrays, download_file
from flstream.streaming.limits import Limits
from flstream.streaming.receiver import StreamSettings

MIB = 1 << 20
TOKEN = bytes(range(16))
# An attacker takes seconds to start on a machine that is busy.
QUICK = StreamSettings(chunk_size=MIB, request_timeout=60, ping_timeout=60)

LAYOUTS = {
    "two million empty lists": "Expected `object.*`, got `array`",
    "a million lists in one another": "cannot be read",
    "two million lists in the ties": "Expected `object`, got `array`",
    "numbers in the place of tensors": "cannot be read",
    "more tensors than are taken": "120000 tensors",
    "all bytes that there are": r"9223372036854775807 bytes, and .* \(Limits.body_bytes\)",
    "more bytes than are taken": r"1125899906842624 bytes, and .* \(Limits.body_bytes\)",
    "twenty million spaces": r"a message of 20\d+ bytes, .*Limits.layout_bytes",
    "metadata without end": "600000 entries of metadata; at most 100000 are taken",
    "ties without end": "400000 ties; at most 100000 are taken",
}


@first_and_nightly(("kind", "sentence"), list(enumerate(LAYOUTS.values())), ids=LAYOUTS, brief=4)
def test_a_layout_that_is_none_costs_the_receiver_little_and_leaves_nothing(
    attackers, watch_growth, tmp_path, kind, sentence
):
    receiver, _, attacker = attackers.send("states", kind)
    growth = watch_growth()
    status, path = download_file(
        receiver, TOKEN, tmp_path / "m.safetensors", settings=QUICK, resume=True, optional=True
    )
    assert growth.stop() < 64 * MIB
    assert status.code == "failed"
    assert path is None
    assert re.search(sentence, status.reason)
    assert not list(tmp_path.iterdir())
    # The sender learns why, as it would of any failure.
    ok, reason = attacker.says().split(" ", 1)
    assert ok == "False"
    assert reason == status.reason


def test_a_body_is_as_long_as_its_receiver_allows(attackers, tmp_path):
    receiver, _, _ = attackers.send("sends", 9 * MIB, limits=Limits(body_bytes=8 * MIB))
    status, _ = download_file(
        receiver, TOKEN, tmp_path / "m.safetensors", settings=QUICK, optional=True
    )
    assert "offers 9437184 bytes, and 8388608 are taken here at most" in status.reason
    receiver, _, _ = attackers.send("sends", 9 * MIB, limits=Limits(body_bytes=9 * MIB))
    assert download_file(receiver, TOKEN, tmp_path / "m.safetensors", settings=QUICK)[0].ok


def test_an_abort_ends_a_download_in_the_middle_of_a_frame(attackers):
    nbytes = 512 * MIB
    receiver, abort, _ = attackers.send("sends", nbytes)
    settings = replace(QUICK, chunk_size=nbytes, request_size=nbytes)
    taken = []
    channel = receiver.incoming._channel
    receive_some = channel.receive_some

    def counting(views):
        count = receive_some(views)
        taken.append(count)
        if sum(taken) > 16 * MIB:
            abort.set()
        return count

    channel.receive_some = counting
    status, _ = download_arrays(receiver, TOKEN, settings=settings, optional=True)
    assert status.code == "aborted"
    assert sum(taken) < 64 * MIB


def test_a_reason_gives_no_commands_to_a_terminal(attackers):
    receiver, _, _ = attackers.send("refuses")
    status, _ = download_arrays(receiver, TOKEN, settings=QUICK, optional=True)
    assert status.code == "refused"
    assert status.reason.isprintable()
    assert r"\x1b[2J" in status.reason
    assert len(status.reason) < 10_000


@pytest.mark.parametrize(
    ("token", "given"),
    [
        (b"", "0 bytes"),
        (b"short", "5 bytes"),
        (bytes(17), "17 bytes"),
        ("x" * 16, "a str"),
        ("ab", "1 bytes"),
        (None, "a NoneType"),
    ],
)
def test_a_token_that_is_none_is_refused_at_once(attackers, token, given):
    receiver, _, _ = attackers.send("refuses")
    status, _ = download_arrays(receiver, token, settings=QUICK, optional=True)
    assert status.code == "refused"
    assert (
        f"a ref's token has 16 bytes, or 32 hexadecimal digits, and this is {given}"
        in status.reason
    )
