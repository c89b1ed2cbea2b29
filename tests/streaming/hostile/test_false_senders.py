"""Senders that state too much, send for ever, or change what they offer: receivers bear it."""

import os
import re
from contextlib import closing

import liars
import pytest
import torch
from nightly_cases import first_and_nightly
from packets import FRAME, message, packed
from safetensors.torch import save_file

from flstream.streaming import Limits, Signal, StreamSettings
from flstream.streaming import receiver as receiver_module
from flstream.streaming.api import add_file, add_tensors, download_file, download_tensors

MIB = 1 << 20
TOKEN = bytes(range(16))
QUICK = {"settings": StreamSettings(MIB, 60, ping_timeout=60), "optional": True}


def entries(count, text):
    return b",".join(text % number for number in range(count))


EMPTY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
LAYOUTS = {
    "two million empty lists": (
        lambda: b'{"w":[' + b"[]," * (2 * MIB) + b"[]]}",
        "Expected `object.*`, got `array`",
    ),
    "a million lists in one another": (
        lambda: b'{"w":' + b"[" * MIB + b"]" * MIB + b"}",
        "cannot be read",
    ),
    "two million lists in the ties": (
        lambda: b'{"__metadata__":{"flstream.tied":"[' + b"[]," * (2 * MIB) + b'[]]"}}',
        "Expected `object`, got `array`",
    ),
    "more tensors than are taken": (
        lambda: b"{" + entries(120_000, b'"%d":' + EMPTY) + b"}",
        "120000 tensors",
    ),
    "all bytes that there are": (
        lambda: liars.layout_of(("w", 0, 2**63 - 1)),
        r"9223372036854775807 bytes, and .* \(Limits.body_bytes\)",
    ),
    "twenty million spaces": (
        lambda: b"{" + b" " * (20 * MIB) + b"}",
        r"a message of 20\d+ bytes, .*Limits.layout_bytes",
    ),
    "metadata without end": (
        lambda: b'{"__metadata__":{' + entries(600_000, b'"%d":""') + b"}}",
        "600001 keys; at most 500000 are taken",
    ),
    "ties without end": (
        lambda: (
            b'{"__metadata__":{"flstream.tied":"{'
            + entries(400_000, b'\\"%d\\":\\"w\\"')
            + b'}"},"w":'
            + EMPTY
            + b"}"
        ),
        "400000 ties; at most 100000 are taken",
    ),
}


@first_and_nightly(("make", "sentence"), LAYOUTS.values(), ids=LAYOUTS, brief=6)
def test_a_layout_that_is_none_costs_little_and_leaves_none(watch_growth, tmp_path, make, sentence):
    with liars.receiver_of("the truth", layout=make()) as (receiver, sender):
        growth = watch_growth()
        status, path = download_file(
            receiver, TOKEN, tmp_path / "m.safetensors", resume=True, **QUICK
        )
        # What is sent is in this process, too.
        assert growth() < (64 + 2 * 21) * MIB
        assert (status.code, path) == ("failed", None)
        assert re.search(sentence, status.reason)
        assert not list(tmp_path.iterdir())
        # The sender learns why, as it would of any failure, unless it is still sending.
        assert "layout_bytes" in sentence or sender.told.get(timeout=60) == (False, status.reason)


def test_a_body_is_as_long_as_its_receiver_allows(tmp_path):
    for most, is_taken in ((8 * MIB, False), (9 * MIB, True)):
        limits = Limits(body_bytes=most)
        with liars.receiver_of("the truth", limits=limits, nbytes=9 * MIB) as (receiver, _):
            status, _ = download_file(receiver, TOKEN, tmp_path / "m.safetensors", **QUICK)
        sentence = "offers 9437184 bytes, and 8388608 are taken here at most"
        assert status.ok if is_taken else sentence in status.reason


@pytest.mark.parametrize("chunk_size", [MIB, 64 * MIB], ids=["between", "in the middle of"])
def test_an_abort_ends_a_download_whose_bytes_keep_coming(chunk_size):
    nbytes, taken, abort = 64 * MIB, [], Signal()
    with closing(abort), liars.receiver_of("the truth", nbytes=nbytes) as (receiver, _):
        channel = receiver.channel
        receive_some = channel.receive_some

        def counting(views):
            taken.append(receive_some(views))
            if sum(taken) > 8 * MIB:
                abort.set()
            return taken[-1]

        channel.receive_some = counting
        how = {"settings": StreamSettings(chunk_size, ping_timeout=60), "abort_signal": abort}
        status, _ = download_tensors(receiver, TOKEN, optional=True, **how)
    assert status.code == "aborted"
    assert sum(taken) < 32 * MIB


ENDLESS = {
    "a frame of a number not asked for": packed(FRAME, 99, 4096, bytes(4096)),
    "an empty frame of a number not asked for": packed(FRAME, 99, 0, b""),
    "what it opened": message("Opened", 99, layout=liars.layout_of(("w", 0, liars.NBYTES))),
    "a refusal of something else": message("Refused", 99, reason="no"),
    "what is sent": message("Pong", 99, fetch=3),
    "that it is closed": message("Closed", 99),
}


@pytest.mark.parametrize("again", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("case", ["chatter", "late chatter"])
def test_a_sender_that_goes_on_without_end_is_given_up(case, again, monkeypatch):
    monkeypatch.setattr(receiver_module, "_MOST_REPEATED", 1 << 18)
    with liars.receiver_of(case, again=again) as (receiver, _):
        status, _ = download_tensors(receiver, TOKEN, **QUICK)
    assert "liar repeats itself" in status.reason


def test_a_reason_gives_no_commands_to_a_terminal():
    with liars.receiver_of("a refusal", reason="\x1b[2J\x1b]0;gone\x07" * 2000) as (receiver, _):
        status, _ = download_tensors(receiver, TOKEN, **QUICK)
    assert status.code == "refused"
    assert status.reason.isprintable()
    assert r"\x1b[2J" in status.reason
    assert len(status.reason) < 10_000


@pytest.mark.parametrize("token", [b"", b"short", bytes(17), "x" * 16, "ab", None])
def test_a_token_that_is_none_is_refused_at_once(token):
    with liars.receiver_of("silence") as (receiver, _):
        status, _ = download_tensors(receiver, token, **QUICK)
    assert status.code == "refused"
    assert "a ref's token has 16 bytes, or 32 hexadecimal digits, and this is" in status.reason


HALF = 1 << 20
SETTINGS = StreamSettings(chunk_size=1 << 18, request_timeout=30)


def by_torch(weight, _path):
    weight.add_(1)


def through_a_view(weight, _path):
    weight[HALF:].zero_()


def of_a_file(_weight, path):
    with path.open("r+b") as file:
        file.seek(-HALF, 2)
        file.write(bytes(HALF))


def cut_short(_weight, path):
    os.truncate(path, HALF)


def through_numpy(weight, _path):
    weight.numpy()[HALF:] = 2


@pytest.mark.parametrize(
    ("change", "at", "is_seen"),
    [
        (by_torch, HALF, True),
        (by_torch, 2 * HALF, True),  # after the last byte, and before it counts as sent
        (through_a_view, HALF, True),
        (of_a_file, HALF, True),
        (cut_short, HALF, True),
        (through_numpy, HALF, False),  # as docs/internals/protocol.md says
    ],
)
@pytest.mark.parametrize("sink", ["memory", "file"])
@pytest.mark.parametrize("direct", [False, True], ids=["frames", "direct"])
def test_a_change_that_shows_fails_both_sides(harness, tmp_path, change, at, is_seen, sink, direct):
    weight = torch.ones(2 * HALF, dtype=torch.uint8)
    sent, received = tmp_path / "m.safetensors", tmp_path / "received"
    save_file({"w": weight}, sent)
    receiver = harness.receiver(direct=direct)
    if change in (of_a_file, cut_short):
        ref = add_file(harness.service, sent, ["site-1"])
    else:
        ref = add_tensors(harness.service, {"w": weight}, ["site-1"])
    options = {
        "settings": SETTINGS,
        "on_progress": lambda done, _: change(weight, sent) if done == at else None,
        "optional": True,
    }
    if sink == "file":
        status, _ = download_file(receiver, ref.token, received, **options)
    else:
        status, _ = download_tensors(receiver, ref.token, **options)
    outcome = ref.wait(30)
    assert (status.ok, outcome.ok) == (not is_seen, not is_seen)
    if is_seen:
        name = "m.safetensors" if change in (of_a_file, cut_short) else "'w'"
        flaw = "ends at byte|cut short" if change is cut_short else "was changed"
        assert re.search(rf"{name}.* ({flaw})", status.reason)
        assert re.search(flaw, outcome.reason)
        assert not received.exists()
