"""A model on record is used only if its file has the digest of its record."""

import pytest
import torch

from flstream.model.checkpoint import write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.server.stored_model import UnsoundModelError, opened


def test_a_file_with_another_digest_than_its_record_or_without_a_body_is_unsound(tmp_path):
    path = tmp_path / "model.safetensors"
    digest = write_checkpoint(path, MemoryBody.of({"w": torch.zeros(3)}))
    opened(4, path, digest)
    write_checkpoint(path, MemoryBody.of({"w": torch.ones(3)}))
    with pytest.raises(UnsoundModelError, match=digest) as caught:
        opened(4, path, digest)
    assert caught.value.effect == 4
    path.unlink()
    with pytest.raises(UnsoundModelError, match="No such file"):
        opened(5, path)
