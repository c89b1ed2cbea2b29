"""An update in a file is there whole or not at all, and what is damaged is never folded."""

import socket
from types import SimpleNamespace

import pytest
import torch
from support import body_of

from flstream.aggregation.update_body import RemoteBody
from flstream.codecs.chain import UpdateForm
from flstream.errors import (
    CheckpointError,
    RefusedError,
    StreamingError,
    UpdateRefusedError,
)
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, views_of
from flstream.server.updates import UpdateFiles, update_of
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import StreamSettings
from flstream.transport.channel import Channel
from flstream.worker.messages import SiteAnswer

BODY = MemoryBody.of(
    {
        "w": torch.randn(100_000, generator=torch.Generator().manual_seed(1)),
        "n": torch.tensor(7),
    }
)
SETTINGS = StreamSettings(chunk_size=1 << 16)


def answer(site):
    return SiteAnswer(site, 3.0, {"loss": 0.5}, "DIFF", "numpy", partial=True)


def remote(answer, worker, token):
    return update_of(answer, RemoteBody(worker.up, token, SETTINGS), UpdateForm(BODY))


@pytest.fixture
def offering():
    """A worker, as far as its updates go, and what puts one on offer there."""
    ours, theirs = socket.socketpair()
    with DownloadService() as service:
        service.attach(Channel(theirs, "server"), receiver="server")
        worker = SimpleNamespace(up=Receiver(Channel(ours, "worker-1"), "worker-1"))
        yield worker, lambda source=BODY: service.offer(source, ["server"])
        ours.close()


@pytest.fixture
def update_files(tmp_path):
    return UpdateFiles(
        tmp_path / "updates" / "round-0003", lambda _: UpdateForm(BODY), durable=True
    )


@pytest.fixture
def fetched(update_files, offering):
    """The records of the updates of two sites, which are durable."""
    worker, offer = offering
    sites = ("site-1", "site-2")
    updates = {site: remote(answer(site), worker, offer().token) for site in sites}
    for update in updates.values():
        update_files.fetch(update)
    return update_files.keep(updates)


def files(update_files):
    return sorted(path.name for path in update_files.folder.glob("*"))


def test_an_update_is_fetched_into_a_file(update_files, offering):
    worker, offer = offering
    ref = offer()
    update = remote(answer("site-1"), worker, ref.token)
    update_files.fetch(update)
    assert ref.wait(20).status == "finished"
    assert files(update_files) == ["site-1.safetensors"]
    assert (update.body.cost.bytes, update.body.cost.chunks) == (400_008, 7)
    assert body_of(update.open(1 << 20)) == body_of(BODY)


def test_a_durable_update_is_loaded_by_its_record(update_files, fetched):
    update = update_files.load("site-2", 3.0, fetched["site-2"])
    facts = (update.site, update.weight, update.params_type, update.partial)
    assert facts == ("site-2", 3.0, "DIFF", True)
    assert update.body.cost.bytes == 400_008
    body = update.open(1 << 20)
    assert body_of(body) == body_of(BODY)
    assert b"".join(views_of(body, 0, 4096, Scratch())) == body_of(BODY)[:4096]
    # It may be folded again.
    update.body.release()
    assert files(update_files) == ["site-1.safetensors", "site-2.safetensors"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:-7] + bytes([content[-7] ^ 1]) + content[-6:],
        lambda content: b"",
    ],
    ids=["truncated", "flipped", "empty"],
)
def test_a_damaged_update_is_named(update_files, fetched, damage):
    path = update_files.folder / "site-1.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=str(path)):
        update_files.load("site-1", 3.0, fetched["site-1"])


@pytest.mark.parametrize(
    ("other", "partial", "words"),
    [
        ({"w": torch.zeros(7), "n": torch.tensor(7)}, False, r"'w' has shape \[7\]"),
        ({"v": torch.zeros(7)}, True, "'v' is not part of the model"),
        ({"w": torch.zeros(200_000)}, True, r"'w' has shape \[200000\]"),
    ],
)
def test_an_update_of_another_layout_is_refused_before_it_takes_disk(
    update_files, offering, other, partial, words
):
    worker, offer = offering
    given = SiteAnswer("site-1", 1.0, {}, partial=partial)
    with pytest.raises(UpdateRefusedError, match=f"update of site-1 does not fit .*{words}"):
        update_files.fetch(remote(given, worker, offer(MemoryBody.of(other)).token))
    assert files(update_files) == []


def test_an_update_that_does_not_arrive_leaves_nothing(update_files, offering):
    class Broken:
        layout = BODY.layout

        def read(self, start, stop, into):
            raise CheckpointError("cannot be read")

    worker, offer = offering
    with pytest.raises(StreamingError):
        update_files.fetch(remote(answer("site-1"), worker, offer(Broken()).token))
    assert files(update_files) == []
    with pytest.raises(RefusedError):
        update_files.fetch(remote(answer("site-1"), worker, bytes(16)))
    assert files(update_files) == []


def test_an_update_that_was_folded_as_it_came_gives_its_disk_back(update_files, offering):
    worker, offer = offering
    update = remote(answer("site-1"), worker, offer().token)
    update_files.fetch(update)
    update.body.release()
    assert files(update_files) == []
