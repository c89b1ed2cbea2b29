"""Receivers that fail for reasons of their own: the sender learns of each, and when all is done."""

import os
import re
import threading

import numpy as np
import pytest
import torch

from flstream.errors import CheckpointError, LayoutError, PayloadError
from flstream.streaming import StreamSettings, add_payload, add_tensors
from flstream.streaming.api import download_file, download_payload, download_tensors

MIB = 1 << 20
QUICK = StreamSettings(chunk_size=1 << 16, request_timeout=30)


def ones(nbytes=MIB):
    return {"w": np.ones(nbytes, np.uint8)}


@pytest.fixture
def receiver(harness):
    return harness.receiver("site-1")


@pytest.fixture
def fails(harness, receiver):
    """Expects of a download that it fails, and that the sender learns why."""

    def fails(error, sentence, download, *args, add=add_tensors, of=None, **options):
        ref = add(harness.service, of or ones(), ["site-1"])
        with pytest.raises(error, match=sentence):
            download(receiver, ref.token, *args, settings=QUICK, **options)
        outcome = ref.wait(10)
        assert outcome.status == "aborted"
        assert re.match(f"site-1: .*{sentence}", outcome.reason)
        # The channel is as good as before.
        assert download_tensors(receiver, add_tensors(harness.service, ones(), ["site-1"]).id)[0].ok

    return fails


def raises(*_):
    raise ZeroDivisionError("of the user's")


@pytest.mark.parametrize("argument", ["on_progress", "on_tensors"])
@pytest.mark.parametrize("nbytes", [1000, MIB])
def test_an_error_of_a_callback_reaches_the_sender(fails, argument, nbytes):
    options = {argument: raises, "of": ones(nbytes)}
    fails(ZeroDivisionError, "of the user's", download_tensors, **options)


def test_a_sink_that_cannot_be_written_reaches_the_sender(fails):
    turned = {"into": {"w": torch.ones(10, 10).T}, "of": {"w": np.ones((10, 10), np.float32)}}
    fails(LayoutError, "tensor 'w' is not contiguous", download_tensors, **turned)
    sentence = "cannot be received into a int; give a module"
    fails(LayoutError, sentence, download_tensors, into=5)
    into = {"w": object()}
    fails(PayloadError, "cannot be sent", download_payload, into=into, add=add_payload)


@pytest.mark.parametrize("name", ["file/m.safetensors", "m" * 300, "folder", "n\0l", "pipe"])
def test_a_path_that_cannot_be_written_reaches_the_sender(fails, tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    sentence = "it is no regular file" if name == "pipe" else "cannot be written"
    fails(CheckpointError, sentence, download_file, tmp_path / name, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "pipe"]


def test_a_disk_that_refuses_the_last_step_is_a_failure_for_the_sender(
    fails, tmp_path, monkeypatch
):
    def refuse(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    fails(CheckpointError, "Input/output error", download_file, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_receiver_that_stalls_is_named_by_the_offer_itself(harness, receiver):
    service = harness.service
    settled = threading.Event()
    ref = add_tensors(
        service,
        {"w": np.ones(8 * MIB, np.uint8)},
        ["site-1", "site-2"],
        on_settled=lambda _: settled.set(),
        stall_timeout=0.5,
    )
    assert download_tensors(receiver, ref.token, settings=QUICK)[0].ok
    assert settled.wait(10)  # nobody waits for the ref
    assert ref.outcome.status == "aborted"
    assert ref.outcome.reason.startswith("site-2: it stalled (sent 0 B of 8 MiB, nothing from it")
    assert ref.deliveries["site-1"].failure is None


def test_a_callback_may_close_the_service(harness, receiver):
    service, closed = harness.service, threading.Event()

    def close(_):
        service.close()
        closed.set()

    ref = add_tensors(service, {"w": np.ones(10)}, ["site-1"], on_settled=close)
    assert download_tensors(receiver, ref.token, settings=QUICK)[0].ok
    assert closed.wait(10)


def test_an_offer_to_nobody_is_finished_and_one_to_a_text_is_refused(harness):
    ref = add_tensors(harness.service, {"w": np.ones(10)}, [])
    assert ref.wait(0).ok
    with pytest.raises(ValueError, match="receivers is the text 'site-1'; give a list"):
        add_tensors(harness.service, {"w": np.ones(10)}, "site-1")
    with pytest.raises(ValueError, match=r"receivers are .None.; give their names"):
        add_tensors(harness.service, {"w": np.ones(10)}, [None])


@pytest.mark.parametrize("timeout", [1e300, float("inf")])
def test_a_stall_timeout_without_end_does_not_stop_the_service(harness, receiver, timeout):
    array = {"w": np.ones(10)}
    ref = add_tensors(harness.service, array, ["site-1"], stall_timeout=timeout)
    assert download_tensors(receiver, ref.token, settings=QUICK)[0].ok
    assert ref.wait(10).ok
