"""A checkpoint that is mapped by its descriptor: the same tensors, and nobody else's pages."""

import mmap
import os

import numpy as np
import pytest
import torch
from support import body_of

from flstream.errors import CheckpointError, LayoutError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.mapped import MappedModel
from flstream.model.memory import MemoryBody

MIB = 1 << 20
KINDS = [torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.bool]


def tensors():
    generator = torch.Generator().manual_seed(5)
    made = {
        f"{place}.{str(kind).rpartition('.')[2]}": torch.randint(
            0, 2, (64, 3), generator=generator
        ).to(kind)
        for place, kind in enumerate(KINDS)
    }
    made["large"] = torch.randn(512, 1024, generator=generator)
    made |= {"empty": torch.zeros(0, 4), "scalar": torch.tensor(7), "odd": torch.arange(5.0)}
    return made | {"tied": made["large"]}


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "model.safetensors"
    write_checkpoint(found, MemoryBody.of(tensors()))
    return found


def mapped(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return MappedModel(fd, "the checkpoint")
    finally:
        os.close(fd)


def bits(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def test_a_mapped_model_has_the_bits_and_kinds_of_the_file(path):
    found, due = mapped(path).tensors("pytorch"), tensors()
    assert found.keys() == due.keys()
    for name, tensor in due.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        if tensor.numel():
            assert bits(found[name]) == bits(tensor), name
    assert found["tied"] is found["large"]
    # The descriptor's offset is shared with other processes.
    fd = os.open(path, os.O_RDONLY)
    os.lseek(fd, 17, os.SEEK_SET)
    file = FileSource(path)
    assert body_of(MappedModel(fd, "the checkpoint").source()) == body_of(file)
    assert os.lseek(fd, 0, os.SEEK_CUR) == 17
    os.close(fd)


def test_arrays_are_mapped_too_unless_numpy_lacks_the_kind(tmp_path):
    weights = np.arange(64 * 1024, dtype=np.float32)
    write_checkpoint(tmp_path / "a.safetensors", MemoryBody.of({"w": weights}))
    found = mapped(tmp_path / "a.safetensors").tensors("numpy")["w"]
    assert found.flags.writeable
    assert np.array_equal(found, weights)
    half = {"w": torch.ones(64, dtype=torch.bfloat16)}
    write_checkpoint(tmp_path / "b.safetensors", MemoryBody.of(half))
    with pytest.raises(LayoutError, match="bfloat16"):
        mapped(tmp_path / "b.safetensors").tensors("numpy")


def test_views_begin_where_torch_begins_its_own_tensors_and_the_rest_is_copied(path):
    # The last bits of products depend on where their factors begin.
    model = mapped(path)
    tensors = model.tensors("pytorch")
    assert all(each.data_ptr() % 64 == 0 for each in tensors.values() if each.numel())
    first = model._bytes.ctypes.data
    are_views = {first <= each.data_ptr() < first + len(model._bytes) for each in tensors.values()}
    assert are_views == {True, False}


def test_what_is_written_stays_in_this_process(path):
    before, model = path.read_bytes(), mapped(path)
    model.tensors("pytorch")["large"].fill_(3)
    assert path.read_bytes() == before
    assert mapped(path).tensors("pytorch")["large"].ne(3).any()


def test_pages_that_were_written_to_are_counted_and_those_that_were_read_are_not(tmp_path):
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, MemoryBody.of({"w": torch.zeros(4 * MIB)}))
    model = mapped(path)
    weights = model.tensors("pytorch")["w"]
    assert weights.sum() == 0
    assert model.written_bytes() == 0
    weights[: 2 * MIB] += 1
    assert 8 * MIB <= model.written_bytes() <= 8 * MIB + 2 * mmap.PAGESIZE


def refused(place, match, flags=os.O_RDONLY):
    fd = os.open(place, flags)
    try:
        with pytest.raises(CheckpointError, match=match):
            MappedModel(fd, "the checkpoint")
    finally:
        os.close(fd)


def test_what_is_no_checkpoint_opened_to_be_read_alone_is_refused(path):
    refused(path.parent, "no regular file")
    refused("/dev/zero", "no regular file")
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_PATH):
        refused(path, "read alone", flags)
    data = path.read_bytes()
    for content in (b"", data[:4], data[:40], data[:-1], b"\xff" * 4096):
        path.write_bytes(content)
        refused(path, "the checkpoint")
