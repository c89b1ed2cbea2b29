"""The low-level API: offers and downloads of tensors, arrays and files."""

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
from flstream.streaming.settings import StreamSettings

SMALL = StreamSettings(chunk_size=1024, request_timeout=5, ping_after=0.05)
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


MODEL = {"w": np.random.default_rng(3).random(100_000, dtype=np.float32)}
NBYTES = 400_000


@pytest.mark.parametrize("left", ["as it was", "damaged", "of another model", "of another layout"])
def test_a_download_into_a_file_goes_on_with_what_is_sound_of_it(harness, tmp_path, left):
    path, progress = tmp_path / "model.safetensors", []
    part = path.with_name(path.name + ".tmp")

    def go_on(name, model, on_progress):
        ref = add_arrays(harness.service, model, [name])
        return download_file(
            harness.receiver(name),
            ref.token,
            path,
            settings=SMALL,
            on_progress=on_progress,
            resume=True,
        )[0]

    def stop(done, _):
        if done >= 300_000:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        go_on("first", MODEL, stop)
    assert not path.exists()
    model = {"w": MODEL["w"] + (left == "of another model")}
    data = bytearray(part.read_bytes())
    if left == "damaged":
        data[-NBYTES + 5] ^= 1
    part.write_bytes(b"something else altogether" * 999 if left == "of another layout" else data)
    here, due = part.read_bytes()[-NBYTES:], model["w"].tobytes()
    block = 64 << 10
    missing = [
        at for at in range(0, NBYTES, block) if here[at : at + block] != due[at : at + block]
    ]
    assert (len(missing) < 5) == (left in ("as it was", "damaged"))
    status = go_on("second", model, lambda done, _: progress.append(done))
    assert status.cost.bytes == sum(min(block, NBYTES - at) for at in missing)
    assert progress == sorted(set(progress))
    assert progress[-1] == NBYTES
    assert torch.equal(load_file(path)["w"], torch.from_numpy(model["w"]))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
