"""An update in a file is there whole or not at all, and what is damaged is never taken up."""

import socket
from types import SimpleNamespace

import pytest
import torch
from support import body_of

from flstream.client.messages import SiteAnswer
from flstream.codecs.update_form import UpdateForm
from flstream.errors import CheckpointError, RefusedError, StreamingError, UpdateRefusedError
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, views_of
from flstream.server.collected_updates import UpdateCollection
from flstream.server.update_files import UpdateFiles
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import StreamSettings
from flstream.transport.channel import Channel

BODY = MemoryBody.of(
    {
        "w": torch.randn(100_000, generator=torch.Generator().manual_seed(1)),
        "n": torch.tensor(7),
    }
)
SETTINGS = StreamSettings(chunk_size=1 << 16)


def answer(site):
    return SiteAnswer(site, 3.0, {"loss": 0.5}, "DIFF", "numpy", partial=True)


def collection(worker, token):
    return UpdateCollection(worker, token, SETTINGS, UpdateForm(BODY))


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
    return UpdateFiles(tmp_path / "updates" / "round-0003", "base-digest", UpdateForm(BODY))


@pytest.fixture
def fetched(update_files, offering):
    """The update files with the updates of two sites."""
    worker, offer = offering
    for site in ("site-1", "site-2"):
        update_files.fetch(answer(site), collection(worker, offer().token))
    return update_files


def files(update_files):
    return sorted(path.name for path in update_files.folder.glob("*"))


def test_an_update_is_fetched_into_a_file_beside_which_lies_what_its_site_said(
    update_files, offering
):
    worker, offer = offering
    ref = offer()
    update = update_files.fetch(answer("site-1"), collection(worker, ref.token))
    assert ref.wait(20).status == "finished"
    assert files(update_files) == ["site-1.answer", "site-1.safetensors"]
    assert (update.cost.bytes, update.cost.chunks) == (400_008, 7)
    folded = update.source(1 << 20)
    facts = (folded.site, folded.weight, folded.params_type, folded.partial)
    assert facts == ("site-1", 3.0, "DIFF", True)


def test_what_an_earlier_server_fetched_is_recovered_with_all_that_was_said(fetched):
    again = UpdateFiles(fetched.folder, "base-digest", UpdateForm(BODY))
    found = again.recover(["site-1", "site-2", "site-3"])
    assert list(found) == ["site-1", "site-2"]
    assert found["site-2"].answer == answer("site-2")
    body = found["site-2"].source(1 << 20).open()
    assert body_of(body) == body_of(BODY)
    assert b"".join(views_of(body, 0, 4096, Scratch())) == body_of(BODY)[:4096]
    # What was trained from another model is not taken up.
    other = UpdateFiles(fetched.folder, "another-digest", UpdateForm(BODY))
    assert other.recover(["site-1", "site-2"]) == {}
    assert other.record("site-1") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:-7] + bytes([content[-7] ^ 1]) + content[-6:],
        lambda content: b"",
    ],
    ids=["truncated", "flipped", "empty"],
)
@pytest.mark.parametrize("name", ["site-1.answer", "site-1.safetensors"])
def test_what_is_damaged_is_not_taken_up(fetched, damage, name):
    path = fetched.folder / name
    path.write_bytes(damage(path.read_bytes()))
    assert list(fetched.recover(["site-1", "site-2"])) == ["site-2"]


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
        update_files.fetch(given, collection(worker, offer(MemoryBody.of(other)).token))
    assert files(update_files) == []


def test_an_update_that_does_not_arrive_leaves_nothing(update_files, offering):
    class Broken:
        layout = BODY.layout

        def read(self, start, stop, into):
            raise CheckpointError("cannot be read")

    worker, offer = offering
    with pytest.raises(StreamingError):
        update_files.fetch(answer("site-1"), collection(worker, offer(Broken()).token))
    assert files(update_files) == []
    with pytest.raises(RefusedError):
        update_files.fetch(answer("site-1"), collection(worker, bytes(16)))
    assert files(update_files) == []


def test_a_folded_update_gives_its_disk_back_and_what_was_said_of_it_stays(fetched):
    fetched.recover(["site-1"])["site-1"].release()
    assert files(fetched) == ["site-1.answer", "site-2.answer", "site-2.safetensors"]
    assert fetched.record("site-1").answer == answer("site-1")
    assert list(fetched.recover(["site-1", "site-2"])) == ["site-2"]
    # One that was refused leaves nothing.
    fetched.recover(["site-2"])["site-2"].release("not finite")
    assert files(fetched) == ["site-1.answer"]
    assert fetched.record("site-2") is None
