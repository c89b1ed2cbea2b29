"""An update in a file is there whole or not at all, and what is damaged is never taken up."""

import os
import socket
from types import SimpleNamespace

import pytest
import torch
from support import body_of

from flstream.client.messages import TrainedSite
from flstream.errors import CheckpointError, RefusedError, StreamingError, UpdateRefusedError
from flstream.model.body import Scratch
from flstream.model.memory import MemoryBody
from flstream.simulator.rounds.spool import Spool, Spooled
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.transport.pipe import PipeChannel

BODY = MemoryBody.of(
    {
        "w": torch.randn(100_000, generator=torch.Generator().manual_seed(1)),
        "n": torch.tensor(7),
    }
)
SETTINGS = StreamSettings(chunk_size=1 << 16)


def told(site):
    return TrainedSite(site, 3.0, "DIFF", "numpy", {"loss": 0.5}, partial=True)


@pytest.fixture
def offering():
    """A worker, as far as its updates go, and what puts one on offer there."""
    ours, theirs = socket.socketpair()
    with DownloadService() as service:
        service.attach(PipeChannel(theirs, "server"), receiver="server")
        worker = SimpleNamespace(up=Receiver(PipeChannel(ours, "worker-1"), "worker-1"))
        yield worker, lambda source=BODY: service.offer(source, ["server"])
        ours.close()


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "updates" / "round-0003", "base-digest", BODY.layout)


@pytest.fixture
def fetched(spool, offering):
    """The spool with the updates of two sites."""
    worker, offer = offering
    for site in ("site-1", "site-2"):
        spool.fetch(worker, told(site), offer().token, SETTINGS)
    return spool


def files(spool):
    return sorted(path.name for path in spool.folder.iterdir()) if spool.folder.exists() else []


def test_an_update_is_fetched_into_a_file_beside_which_lies_what_its_site_said(spool, offering):
    worker, offer = offering
    ref = offer()
    update = spool.fetch(worker, told("site-1"), ref.token, SETTINGS)
    assert ref.wait(20).status == "finished"
    assert files(spool) == ["site-1.safetensors", "site-1.told"]
    assert update.trained == told("site-1")
    assert (update.cost.bytes, update.cost.chunks) == (400_008, 7)
    folded = update.update
    assert (folded.site, folded.weight, folded.params_type, folded.partial) == (
        "site-1",
        3.0,
        "DIFF",
        True,
    )
    assert body_of(folded.open()) == body_of(BODY)


def test_what_an_earlier_server_fetched_is_recovered_with_all_that_was_said(fetched):
    again = Spool(fetched.folder, "base-digest", BODY.layout)
    found = again.recover(["site-1", "site-2", "site-3"])
    assert list(found) == ["site-1", "site-2"]
    assert found["site-2"].trained == told("site-2")
    assert found["site-2"].cost.bytes == 400_008
    assert body_of(found["site-2"].update.open()) == body_of(BODY)
    assert Spool(fetched.folder, "base-digest", BODY.layout).recover(["site-3"]) == {}


def test_an_update_that_was_trained_from_another_model_is_not_taken_up(fetched):
    other = Spool(fetched.folder, "another-digest", BODY.layout)
    assert other.recover(["site-1", "site-2"]) == {}
    assert other.told("site-1") is None


def truncated(path):
    os.truncate(path, path.stat().st_size - 1)


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)


def another_header(path):
    data = path.read_bytes()
    assert b"w" in data
    path.write_bytes(data.replace(b"w", b"v", 1))


@pytest.mark.parametrize("damage", [truncated, flipped, another_header, os.unlink])
@pytest.mark.parametrize("name", ["site-1.safetensors", "site-1.told"])
def test_what_is_damaged_or_gone_is_not_taken_up(fetched, damage, name):
    path = fetched.folder / name
    if name.endswith("told") and damage is another_header:
        path.write_bytes(path.read_bytes().replace(b"base-digest", b"base-digesu"))
    else:
        damage(path)
    assert list(fetched.recover(["site-1", "site-2"])) == ["site-2"]


@pytest.mark.parametrize(
    ("other", "partial", "words"),
    [
        ({"w": torch.zeros(7), "n": torch.tensor(7)}, False, r"'w' has shape \[7\]"),
        ({"w": torch.zeros(7)}, False, "'n' is missing"),
        ({"v": torch.zeros(7)}, True, "'v' is not part of the model"),
        ({"w": torch.zeros(200_000)}, True, "its tensors are larger"),
    ],
)
def test_an_update_of_another_layout_is_refused_before_it_takes_disk(
    spool, offering, other, partial, words
):
    worker, offer = offering
    said = TrainedSite("site-1", 1.0, "FULL", "pytorch", {}, partial)
    with pytest.raises(UpdateRefusedError, match=f"update of site-1 does not fit .*{words}"):
        spool.fetch(worker, said, offer(MemoryBody.of(other)).token, SETTINGS)
    assert files(spool) == []


def test_an_update_that_does_not_arrive_leaves_nothing(spool, offering):
    class Broken:
        layout = BODY.layout

        def views(self, start, stop, scratch):
            raise CheckpointError("cannot be read")

    worker, offer = offering
    with pytest.raises(StreamingError):
        spool.fetch(worker, told("site-1"), offer(Broken()).token, SETTINGS)
    assert files(spool) == []
    with pytest.raises(RefusedError):
        spool.fetch(worker, told("site-1"), bytes(16), SETTINGS)
    assert files(spool) == []
    # The worker's next one comes as ever.
    spool.fetch(worker, told("site-2"), offer().token, SETTINGS)
    assert list(spool.recover(["site-1", "site-2"])) == ["site-2"]


def test_a_server_that_dies_before_it_has_noted_what_was_said_has_no_update(
    spool, offering, monkeypatch
):
    class Killed(BaseException):
        pass

    def die(self, target):
        raise Killed

    worker, offer = offering
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.PosixPath.replace", die)
        with pytest.raises(Killed):
            spool.fetch(worker, told("site-1"), offer().token, SETTINGS)
    assert spool.recover(["site-1"]) == {}
    # And what it left is in nobody's way.
    spool.fetch(worker, told("site-1"), offer().token, SETTINGS)
    assert list(spool.recover(["site-1"])) == ["site-1"]


def test_a_folded_update_gives_its_disk_back_and_what_was_said_of_it_stays(fetched):
    fetched.recover(["site-1"])["site-1"].release()
    assert files(fetched) == ["site-1.told", "site-2.safetensors", "site-2.told"]
    assert fetched.told("site-1").trained == told("site-1")
    assert list(fetched.recover(["site-1", "site-2"])) == ["site-2"]


def test_an_update_that_was_refused_leaves_nothing(fetched):
    fetched.recover(["site-1"])["site-1"].release("not finite")
    assert files(fetched) == ["site-2.safetensors", "site-2.told"]
    assert fetched.told("site-1") is None


def test_a_round_that_is_durable_takes_its_folder_along_but_no_other(fetched, offering):
    worker, offer = offering
    other = Spool(fetched.folder.with_name("round-0004"), "base-digest", BODY.layout)
    other.fetch(worker, told("site-1"), offer().token, SETTINGS)
    fetched.discard()
    assert not fetched.folder.exists()
    assert list(other.recover(["site-1"])) == ["site-1"]
    other.discard()
    assert not other.folder.parent.exists()
    other.discard()


def test_an_update_is_read_from_its_file_a_range_at_a_time(fetched):
    update = fetched.recover(["site-1"])["site-1"]
    assert isinstance(update, Spooled)
    scratch = Scratch()
    first = b"".join(update.update.open().views(0, 4096, scratch))
    assert first == body_of(BODY)[:4096]
