"""A body in a file without a name: it has what was written, and leaves nothing behind."""

import os

import pytest
import torch

from flstream.errors import CheckpointError
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.unnamed_file import UnnamedFile
from tests.support import body_of, every_kind


def test_what_was_copied_into_it_is_read_from_it_and_no_file_is_left(tmp_path):
    body = MemoryBody.of(every_kind())
    folder = tmp_path / "sites"
    file = UnnamedFile(body.layout, folder)
    copy(body, file, step=48)
    assert body_of(file) == body_of(body)
    assert b"".join(file.written(16, 80)) == body_of(body)[16:80]
    assert list(folder.iterdir()) == []
    descriptors = len(os.listdir("/proc/self/fd"))
    del file
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1


def test_an_empty_body_needs_no_room(tmp_path):
    file = UnnamedFile(Layout.of([("a", "F32", (0,))]), tmp_path)
    copy(MemoryBody.of({"a": torch.zeros(0)}), file)
    assert file.layout.nbytes == 0


def test_too_little_room_is_found_at_once(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no room for .* bytes: "):
        UnnamedFile(Layout.of([("a", "F32", (1 << 59,))]), tmp_path)
