"""What the server hands to a worker: a checkpoint of the task's model, and nothing else."""

import os
import socket

import pytest
import torch

from flstream.client.mapped_model import HandedModels
from flstream.client.peer_messages import MapModel
from flstream.errors import ChannelClosedError, CheckpointError, RefusedError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.transport.channel import Deadline
from flstream.transport.passing import receive_descriptor, send_descriptor


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "model.safetensors"
    write_checkpoint(found, MemoryBody.of({"w": torch.ones(100)}))
    return found


def is_open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


def handed_over(path, *models):
    """Models handed to a worker one after another, and their descriptors."""
    handed, fds = HandedModels(), []
    for token, fingerprint in models:
        fds.append(os.open(path, os.O_RDONLY))
        handed.put(MapModel(token, fingerprint), fds[-1])
    return handed, fds


def test_a_model_is_mapped_once_and_all_descriptors_are_closed(path):
    right = FileSource(path).layout.fingerprint
    handed, [fd] = handed_over(path, (b"token", right))
    assert handed.take(b"token").tensors("pytorch")["w"].eq(1).all()
    assert not is_open(fd)
    with pytest.raises(RefusedError, match="not handed over"):
        handed.take(b"token")
    handed, [other] = handed_over(path, (b"other", "0" * 32))
    with pytest.raises(CheckpointError, match="other tensors"):
        handed.take(b"other")
    # What no task asked for is closed when the next comes, or at the end.
    handed, left = handed_over(path, (b"first", right), (b"second", right))
    with pytest.raises(RefusedError):
        handed.take(b"first")
    handed.close()
    assert not any(map(is_open, [fd, other, *left]))


@pytest.mark.parametrize("count", [1, 0, 2])
def test_one_descriptor_is_handed_from_process_to_process_and_nothing_else(path, count):
    ours, theirs = socket.socketpair()
    with ours, theirs, path.open("rb") as file:
        before = len(os.listdir("/proc/self/fd"))
        if count == 1:
            send_descriptor(ours, file.fileno(), Deadline(5))
            found = receive_descriptor(theirs, Deadline(5))
            assert os.path.samestat(os.fstat(found), path.stat())
            assert not os.get_inheritable(found)
            os.close(found)
        else:
            socket.send_fds(ours, [b"\0"], [file.fileno()] * count)
            with pytest.raises(ChannelClosedError, match="no descriptor"):
                receive_descriptor(theirs, Deadline(5))
        assert len(os.listdir("/proc/self/fd")) == before
