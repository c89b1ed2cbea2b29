"""The low-level API: offers and downloads of tensors, arrays and files."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flstream.streaming.api import (
    add_arrays,
    add_tensors,
    download_file,
    download_tensors,
)
from flstream.streaming.receiver import StreamSettings

SMALL = StreamSettings(chunk_size=1024, request_size=4096, request_timeout=5, ping_after=0.05)
TENSORS = {
    "matrix": torch.arange(3000, dtype=torch.float32).reshape(50, 60),
    "half": torch.linspace(-1, 1, 777).half(),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7),
}


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


def test_a_callback_that_raises_harms_nobody(harness, capfd):
    def fail(ref):
        raise RuntimeError("in the callback")

    ref = add_tensors(harness.service, TENSORS, ["site-1"], on_settled=fail)
    receiver = harness.receiver()
    assert download_tensors(receiver, ref.token, settings=SMALL)[0].ok
    assert ref.wait(10).ok
    following = add_tensors(harness.service, TENSORS, ["site-1"])
    assert download_tensors(receiver, following.token, settings=SMALL)[0].ok
    harness.service.close()  # which waits for callbacks
    assert "in the callback" in capfd.readouterr().err


class TestResume:
    """A download into a file that was broken off goes on where it was."""

    MODEL: ClassVar = {"w": np.random.default_rng(3).random(100_000, dtype=np.float32)}
    NBYTES = 400_000

    def broken_off(self, harness, path):
        ref = add_arrays(harness.service, self.MODEL, ["first"])

        def stop(done, _):
            if done >= 300_000:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            download_file(
                harness.receiver("first"),
                ref.token,
                path,
                settings=SMALL,
                on_progress=stop,
                resume=True,
            )

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
