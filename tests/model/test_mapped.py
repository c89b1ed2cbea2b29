"""A checkpoint that is mapped by its descriptor: the same tensors, and nobody else's pages."""

import mmap
import os

import numpy as np
import pytest
import torch

from flstream.errors import CheckpointError, LayoutError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.copy import copy
from flstream.model.mapped import MappedModel
from flstream.model.memory import MemoryBody

MIB = 1 << 20
KINDS = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.bool,
    torch.float8_e4m3fn,
]


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
    views, all_of_them = model.views("pytorch"), model.tensors("pytorch")
    assert all(each.data_ptr() % 64 == 0 for each in views.values())
    assert views.keys() < all_of_them.keys()
    assert all(each.data_ptr() % 64 == 0 for each in all_of_them.values() if each.numel())


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


def test_the_descriptors_offset_is_left_alone(path):
    # Other processes share it.
    fd = os.open(path, os.O_RDONLY)
    os.lseek(fd, 17, os.SEEK_SET)
    MappedModel(fd, "the checkpoint")
    assert os.lseek(fd, 0, os.SEEK_CUR) == 17
    os.close(fd)


def test_a_source_over_the_mapping_has_the_body(path):
    model = mapped(path)
    file = FileSource(path)
    (here,) = model.source().views(0, file.layout.nbytes, Scratch())
    (there,) = file.views(0, file.layout.nbytes, Scratch())
    assert bytes(here) == bytes(there)


def test_a_mapped_file_is_never_overwritten(tmp_path):
    # A checkpoint that is no longer kept is the temporary file of a later one.
    path, spare = tmp_path / "old.safetensors", tmp_path / "new.safetensors.tmp"
    write_checkpoint(path, MemoryBody.of({"w": torch.ones(MIB)}))
    weights = mapped(path).tensors("pytorch")["w"]
    path.rename(spare)
    body = MemoryBody.of({"w": torch.full((MIB,), 9.0)})
    with FileSink(tmp_path / "new.safetensors", body.layout) as sink:
        copy(body, sink)
        sink.finish()
    assert weights.eq(1).all()


def test_a_file_that_is_mapped_no_more_is_written_to_again(tmp_path):
    path, spare = tmp_path / "old.safetensors", tmp_path / "new.safetensors.tmp"
    body = MemoryBody.of({"w": torch.ones(1024)})
    write_checkpoint(path, body)
    number = path.stat().st_ino
    del body, mapped(path).tensors("pytorch")["w"]
    path.rename(spare)
    write_checkpoint(tmp_path / "new.safetensors", MemoryBody.of({"w": torch.zeros(1024)}))
    assert (tmp_path / "new.safetensors").stat().st_ino == number


def refused(fd, match):
    try:
        with pytest.raises(CheckpointError, match=match):
            MappedModel(fd, "the checkpoint")
    finally:
        os.close(fd)


def test_what_is_no_regular_file_is_refused(tmp_path):
    read, write = os.pipe()
    refused(read, "no regular file")
    os.close(write)
    refused(os.open(tmp_path, os.O_RDONLY), "no regular file")
    refused(os.open("/dev/zero", os.O_RDONLY), "no regular file")


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY, os.O_PATH])
def test_what_was_not_opened_to_be_read_alone_is_refused(path, flags):
    refused(os.open(path, flags), "read alone")


@pytest.mark.parametrize("count", [0, 4, 8, 40, -1])
def test_a_file_that_is_cut_short_is_refused(path, count):
    data = path.read_bytes()
    path.write_bytes(data[:count])
    refused(os.open(path, os.O_RDONLY), "the checkpoint")


def test_a_file_of_anything_else_is_refused(path):
    path.write_bytes(b"\xff" * 4096)
    refused(os.open(path, os.O_RDONLY), "the checkpoint")
