"""A sender that changes what it offers while it is fetched: what torch can tell is no success."""

import os
import re

import pytest
import torch
from safetensors.torch import save_file

from flstream.model.memory import MemoryBody
from flstream.streaming.api import add_file, add_tensors, download_file, download_tensors
from flstream.streaming.settings import StreamSettings

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
def test_a_change_that_can_be_seen_ends_the_download_on_both_sides(
    harness, tmp_path, change, at, is_seen, sink, direct
):
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


def test_the_first_tensor_of_a_range_that_was_changed_is_named():
    tensors = {name: torch.zeros(100) for name in "abc"}
    with torch.inference_mode():
        tensors["uncounted"] = torch.ones(10)
    body = MemoryBody.of(tensors)
    tensors["b"].add_(1)
    assert "'b'" in body.changed()
