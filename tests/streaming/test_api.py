"""The low-level API: offers and downloads of tensors, arrays and files."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from faults import Faults, FaultyChannel
from harness import open_harness
from safetensors.torch import load_file
from torch import nn

from flstream.errors import LayoutError
from flstream.streaming.api import (
    add_arrays,
    add_file,
    add_tensors,
    download_arrays,
    download_file,
    download_tensors,
)
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.transport.channel import Signal
from flstream.transport.sockets import SocketChannel

SMALL = StreamSettings(chunk_size=1024, request_size=4096, request_timeout=5, ping_after=0.05)
TENSORS = {
    "matrix": torch.arange(3000, dtype=torch.float32).reshape(50, 60),
    "half": torch.linspace(-1, 1, 777).half(),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7),
}


@pytest.fixture
def harness():
    with open_harness() as harness:
        yield harness


def same(given, due):
    return set(given) == set(due) and all(torch.equal(given[name], due[name]) for name in due)


@pytest.mark.parametrize("chunk_size", [0, 1024, 2 << 20])
def test_tensors_arrive_and_both_sides_know_it(harness, chunk_size):
    ref = add_tensors(harness.service, TENSORS, ["site-1"])
    settings = replace(SMALL, chunk_size=chunk_size)
    status, state_dict = download_tensors(harness.receiver(), ref.token, settings=settings)
    assert status.ok
    assert status.cost.bytes == sum(tensor.nbytes for tensor in TENSORS.values())
    assert same(state_dict, TENSORS)
    assert ref.wait(10).ok


def test_progress_only_goes_up_and_tensors_are_told_of_once_when_whole(harness):
    ref = add_tensors(harness.service, TENSORS, ["site-1"])
    progress, told = [], {}

    def on_tensors(tensors):
        assert not told.keys() & tensors.keys()
        assert all(torch.equal(tensors[name], TENSORS[name]) for name in tensors)
        told.update(tensors)

    status, _ = download_tensors(
        harness.receiver(),
        ref.token,
        settings=SMALL,
        on_progress=lambda *n: progress.append(n),
        on_tensors=on_tensors,
    )
    assert status.ok
    assert told.keys() == TENSORS.keys()
    done = [first for first, _ in progress]
    assert done == sorted(set(done))
    assert progress[-1] == (status.cost.bytes, status.cost.bytes)


def test_arrays_take_the_same_road(harness):
    arrays = {"a": np.arange(500, dtype=np.int16), "b": np.float64(2.5)}
    ref = add_arrays(harness.service, arrays, ["site-1"])
    status, received = download_arrays(harness.receiver(), ref.token, settings=SMALL)
    assert status.ok
    assert all(type(value) is np.ndarray for value in received.values())
    assert np.array_equal(received["a"], arrays["a"])
    assert received["b"] == 2.5


def test_a_file_goes_from_disk_to_disk(harness, tmp_path):
    ref = add_tensors(harness.service, TENSORS, ["site-1"])
    first = tmp_path / "first.safetensors"
    status, path = download_file(harness.receiver(), ref.token, first, settings=SMALL)
    assert status.ok
    assert path == first
    again = add_file(harness.service, first, ["site-2"])
    second = tmp_path / "second.safetensors"
    assert download_file(harness.receiver("site-2"), again.token, second, settings=SMALL)[0].ok
    assert same(load_file(second), TENSORS)
    assert sorted(each.name for each in tmp_path.iterdir()) == [first.name, second.name]


def test_a_module_receives_into_its_own_parameters(harness):
    sent, net = nn.Linear(30, 20), nn.Linear(30, 20)
    pointer = net.weight.data_ptr()
    ref = add_tensors(harness.service, sent.state_dict(), ["site-1"])
    status, _ = download_tensors(harness.receiver(), ref.token, settings=SMALL, into=net)
    assert status.ok
    assert net.weight.data_ptr() == pointer
    assert torch.equal(net.weight, sent.weight)


def test_what_does_not_fit_is_an_error_and_the_sender_hears_why(harness):
    ref = add_tensors(harness.service, TENSORS, ["site-1"])
    with pytest.raises(LayoutError, match="does not fit"):
        download_tensors(harness.receiver(), ref.token, settings=SMALL, into=nn.Linear(3, 2))
    assert "does not fit" in ref.wait(10).reason


def test_every_bad_end_has_its_status_and_leaves_nothing(harness, tmp_path):
    refused, nothing = download_tensors(
        harness.receiver(), bytes(16), settings=SMALL, optional=True
    )
    assert (refused.code, nothing) == ("refused", {})
    assert "not on offer" in refused.reason

    ref = add_tensors(harness.service, TENSORS, ["a", "b", "c"])
    for name, fault, code in (("a", "stall", "timed out"), ("b", "death", "sender gone")):
        broken = FaultyChannel(harness.channel(name), Faults(fault, 1, ends_within=2000))
        path = tmp_path / f"{name}.safetensors"
        hasty = replace(SMALL, request_timeout=0.2)
        status, none = download_file(
            Receiver(broken, "server"), ref.token, path, settings=hasty, optional=True
        )
        assert (status.code, none) == (code, None)
    abort = Signal()
    abort.set()
    stalled = FaultyChannel(harness.channel("c"), Faults("stall", 1, ends_within=2000))
    aborted, _ = download_tensors(
        Receiver(stalled, "server", abort), ref.token, settings=SMALL, optional=True
    )
    assert aborted.code == "aborted"
    abort.close()
    assert list(tmp_path.iterdir()) == []


def test_a_callback_that_raises_harms_nobody(harness, capfd):
    def fail(ref):
        raise RuntimeError("in the callback")

    ref = add_tensors(harness.service, TENSORS, ["site-1"], on_settled=fail)
    receiver = harness.receiver()
    assert download_tensors(receiver, ref.token, settings=SMALL)[0].ok
    assert ref.wait(10).ok
    following = add_tensors(harness.service, TENSORS, ["site-1"])
    assert download_tensors(receiver, following.token, settings=SMALL)[0].ok
    # The outcome is known before the callback is called.
    told, ends = "", time.monotonic() + 10
    while "in the callback" not in told and time.monotonic() < ends:
        told += capfd.readouterr().err
    assert "in the callback" in told


class TestResume:
    """A download into a file that was broken off goes on where it was."""

    MODEL: ClassVar = {"w": np.random.default_rng(3).random(100_000, dtype=np.float32)}
    NBYTES = 400_000

    def broken_off(self, harness, path, within=300_000):
        ref = add_arrays(harness.service, self.MODEL, ["first"])
        faults = Faults("death", 2, ends_within=within)
        receiver = Receiver(FaultyChannel(harness.channel("first"), faults), "server")
        status, _ = download_file(
            receiver, ref.token, path, settings=SMALL, resume=True, optional=True
        )
        assert status.code == "sender gone"

    def resumed(self, harness, path, model=None):
        ref = add_arrays(harness.service, model or self.MODEL, ["second"])
        progress = []
        status, _ = download_file(
            harness.receiver("second"),
            ref.token,
            path,
            settings=SMALL,
            on_progress=lambda done, _: progress.append(done),
            resume=True,
        )
        assert status.ok
        assert progress == sorted(set(progress))
        assert progress[-1] == self.NBYTES
        assert torch.equal(load_file(path)["w"], torch.from_numpy((model or self.MODEL)["w"]))
        assert not list(path.parent.glob("*.tmp"))
        return status.cost.bytes

    def test_only_what_is_missing_is_fetched(self, harness, tmp_path):
        path = tmp_path / "model.safetensors"
        self.broken_off(harness, path)
        assert not path.exists()
        here = path.with_name(path.name + ".tmp").read_bytes()[-self.NBYTES :]
        chunks = range(0, self.NBYTES, SMALL.chunk_size)
        due = self.MODEL["w"].tobytes()
        missing = [at for at in chunks if here[at : at + 1024] != due[at : at + 1024]]
        assert 0 < len(missing) < len(chunks)
        fetched = self.resumed(harness, path)
        assert fetched == sum(min(1024, self.NBYTES - at) for at in missing)

    def test_what_changed_meanwhile_is_not_trusted(self, harness, tmp_path):
        path = tmp_path / "model.safetensors"
        self.broken_off(harness, path)
        partial = path.with_name(path.name + ".tmp")
        data = bytearray(partial.read_bytes())
        data[-self.NBYTES + 5] ^= 1
        partial.write_bytes(data)
        self.resumed(harness, path)

    def test_another_snapshot_of_the_same_layout_is_told_apart(self, harness, tmp_path):
        path = tmp_path / "model.safetensors"
        self.broken_off(harness, path)
        assert self.resumed(harness, path, {"w": self.MODEL["w"] + 1}) == self.NBYTES

    def test_a_partial_file_of_another_layout_is_begun_again(self, harness, tmp_path):
        path = tmp_path / "model.safetensors"
        path.with_name(path.name + ".tmp").write_bytes(b"something else altogether" * 999)
        assert self.resumed(harness, path) == self.NBYTES

    def test_a_file_that_became_shorter_is_refused_and_the_service_goes_on(self, harness, tmp_path):
        offered, path = tmp_path / "offered.safetensors", tmp_path / "model.safetensors"
        whole = add_arrays(harness.service, self.MODEL, ["site-1"])
        receiver = harness.receiver()
        assert download_file(receiver, whole.token, offered, settings=SMALL)[0].ok
        self.broken_off(harness, path)
        ref = add_file(harness.service, offered, ["site-1"])
        os.truncate(offered, 1000)
        status, none = download_file(
            receiver, ref.token, path, settings=SMALL, resume=True, optional=True
        )
        assert (status.code, none) == ("refused", None)
        assert "offered.safetensors" in status.reason
        assert self.resumed(harness, path) < self.NBYTES

    def test_a_receiver_killed_by_the_system_goes_on_in_another_process(self, harness, tmp_path):
        path = tmp_path / "model.safetensors"
        ref = add_arrays(harness.service, self.MODEL, ["first"])
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=download_and_die, args=(harness.pipe_to("first"), ref.token, path)
        )
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert 0 < self.resumed(harness, path) < self.NBYTES


def download_and_die(end, token, path):
    """In a process of its own: is killed when half of the file is there."""

    def die(done, size):
        if done > size // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    receiver = Receiver(SocketChannel(end, "server"), "server")
    download_file(receiver, token, path, settings=SMALL, on_progress=die, resume=True)
