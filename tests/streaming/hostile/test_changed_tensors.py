"""A sender that changes what it offers while it is fetched: what torch can tell is no success."""

from contextlib import closing

import pytest
import torch
from safetensors.torch import save_file

from flstream.errors import RefusedError
from flstream.model.memory import MemoryBody
from flstream.streaming.api import add_file, add_tensors, download_file, download_tensors
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import pipe

HALF = 1 << 20
# Half of the body is asked for, and the rest once that is here.
SETTINGS = StreamSettings(chunk_size=1 << 18, request_size=HALF, window=1, request_timeout=30)


def by_torch(weight, _path):
    weight.add_(1)


def through_a_view(weight, _path):
    weight[HALF:].zero_()


def of_a_file(_weight, path):
    with path.open("r+b") as file:
        file.seek(-HALF, 2)
        file.write(bytes(HALF))


def through_numpy(weight, _path):
    weight.numpy()[HALF:] = 2


@pytest.mark.parametrize(
    ("change", "at", "is_seen"),
    [
        (by_torch, HALF, True),
        (by_torch, 2 * HALF, True),  # after the last byte, and before it counts as sent
        (through_a_view, HALF, True),
        (of_a_file, HALF, True),
        (through_numpy, HALF, False),  # as docs/protocol.md says
    ],
)
@pytest.mark.parametrize("sink", ["memory", "file"])
def test_a_change_that_can_be_seen_ends_the_download_on_both_sides(
    tmp_path, change, at, is_seen, sink
):
    weight = torch.ones(2 * HALF, dtype=torch.uint8)
    sent, received = tmp_path / "m.safetensors", tmp_path / "received"
    save_file({"w": weight}, sent)
    ours, theirs = pipe("server", "site-1")
    with DownloadService() as service, closing(theirs):
        service.attach(ours, "site-1")
        if change is of_a_file:
            ref = add_file(service, sent, ["site-1"])
        else:
            ref = add_tensors(service, {"w": weight}, ["site-1"])
        options = {
            "settings": SETTINGS,
            "on_progress": lambda done, _: change(weight, sent) if done == at else None,
        }
        receiver = Receiver(theirs, "server")

        def download():
            if sink == "file":
                return download_file(receiver, ref.token, received, **options)
            return download_tensors(receiver, ref.token, **options)

        if is_seen:
            name = "m.safetensors" if change is of_a_file else "'w'"
            with pytest.raises(RefusedError, match=rf"{name}.* was changed"):
                download()
            assert "was changed" in ref.wait(30).reason
            assert not list(tmp_path.glob("received*"))
        else:
            assert download()[0].ok
            assert ref.wait(30).ok


def test_the_first_tensor_of_a_range_that_was_changed_is_named():
    tensors = {name: torch.zeros(100) for name in "abc"}
    with torch.inference_mode():
        tensors["uncounted"] = torch.ones(10)
    body = MemoryBody.of(tensors)
    tensors["b"].add_(1)
    assert "'b'" in body.changed(0, body.layout.nbytes)
    assert "'b'" in body.changed(796, 800)
    assert body.changed(0, 400) is None
    assert body.changed(800, body.layout.nbytes) is None
