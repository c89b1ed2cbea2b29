"""Checkpoints: files any tool opens, whole or absent, and refused with a sentence if damaged.

Every format gives the bytes that its tensors have.
"""

import json
import mmap
import os
import shutil
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import safetensors.torch
import support
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same_tensors, body_of, entries, open_files, peak_of, tensor, tensors_of

from flstream.errors import CheckpointError, LayoutError
from flstream.model import checkpoint
from flstream.model.checkpoint import FileSink, FileSource, unnamed_file, write_checkpoint
from flstream.model.copy import copy
from flstream.model.digests import body_digest
from flstream.model.formats import open_checkpoint
from flstream.model.header import MAX_HEADER_BYTES
from flstream.model.layout import Layout
from flstream.model.mapped import MappedModel
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, views_of


@given(st.just([]) | entries(), st.dictionaries(st.text("ab"), st.text("cd")))
@settings(max_examples=50)
def test_the_safetensors_library_and_we_open_what_the_other_writes(tmp_path, drawn, metadata):
    tensors = {name: tensor(code, shape, i) for i, (name, code, shape) in enumerate(drawn)}
    digest = write_checkpoint(tmp_path / "ours", MemoryBody.of(tensors), metadata)
    assert digest == body_digest(MemoryBody.of(tensors))
    assert_same_tensors(safetensors.torch.load_file(tmp_path / "ours"), tensors)
    safetensors.torch.save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    assert FileSource(tmp_path / "theirs").metadata == {"format": "pt"}
    assert_same_tensors(tensors_of(FileSource(tmp_path / "theirs"), 48), tensors)


def test_the_digest_tells_a_changed_bit_name_shape_or_dtype(tmp_path):
    zeros = torch.zeros(4)
    models = [
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.reshape(2, 2)},
        {"a": zeros.int()},
        {"a": -zeros},
        {"a": zeros, "empty": torch.zeros(0)},
    ]
    digests = {write_checkpoint(tmp_path / "m", MemoryBody.of(model)) for model in models}
    assert len(digests) == len(models)


def test_a_file_has_its_name_once_it_is_durable_and_whole(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "model"
    body = MemoryBody.of({"a": torch.arange(100)})
    at_sync = []
    monkeypatch.setattr(os, "fsync", lambda fd: at_sync.append(os.readlink(f"/proc/self/fd/{fd}")))
    before = open_files()
    with FileSink(path, body.layout) as sink:
        copy(body, sink)
        assert os.listdir(path.parent) == ["model.tmp"]
        source = sink.finish()
    assert os.listdir(path.parent) == ["model"]
    # The file before it is renamed, and its folder afterwards.
    assert [os.path.basename(each) for each in at_sync[:1]] == ["model.tmp"]
    assert str(path.parent) in at_sync[1:]
    # What is not finished leaves the old file, which who has opened it keeps.
    with FileSink(path, MemoryBody.of({"b": torch.zeros(99)}).layout) as sink:
        sink.views(0, 16)
        sink.commit(0, 16)
    assert os.listdir(path.parent) == ["model"]
    write_checkpoint(path, MemoryBody.of({"a": torch.zeros(100)}))
    assert body_of(source) == body_of(body)
    del source
    assert open_files() == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_model_larger_than_the_disk_is_refused_before_any_work(tmp_path, resume):
    for nbytes, why in ((2**61, ""), (2**63 - 1, ": no file may have as many")):
        huge = Layout.of([("a", "U8", (nbytes,))])
        with pytest.raises(CheckpointError, match=f"needs .* bytes of disk{why}"):
            FileSink(tmp_path / "huge", huge, resume=resume)
        with pytest.raises(CheckpointError, match=r"has no room for .* bytes: "):
            unnamed_file(huge, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("length", [8, 10])
def test_a_file_of_another_length_than_its_header_says_is_refused_by_name(tmp_path, length):
    path = tmp_path / "damaged"
    path.write_bytes(Layout.of([("a", "U8", (length,))]).header() + bytes(9))
    sentence = f"damaged.* has 9 bytes of tensors where its header promises {length}"
    with pytest.raises(CheckpointError, match=sentence):
        FileSource(path)


def test_what_is_no_file_can_be_none_or_is_no_regular_one_is_refused(tmp_path):
    (tmp_path / "file").write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little") * 9)
    for path, sentence in ((".", "Is a directory"), ("none", "No such file"), ("file", "file")):
        with pytest.raises(CheckpointError, match=sentence):
            FileSource(tmp_path / path)
    with pytest.raises(CheckpointError, match=r"file/model cannot be written"):
        FileSink(tmp_path / "file" / "model", MemoryBody.of({}).layout)
    os.mkfifo(tmp_path / "fifo")
    for path, sentence in (
        (tmp_path, "is a folder; name a regular file"),
        (tmp_path / "fifo", "is a pipe; name a regular file"),
        (tmp_path / "none", "there is no .*none; check the path"),
        (tmp_path / "a\0b", r"a\\x00b cannot be read: embedded null byte"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            checkpoint.open_blob(path)


def test_a_bare_file_is_resumed_whatever_is_there_and_has_its_own_length(tmp_path):
    layout = Layout.of([("blob", "U8", (100,))])
    with FileSink(tmp_path / "b", layout, resume=True, bare=True) as first:
        assert not first.resumed
        first.write(0, memoryview(b"\5" * 60))
    with FileSink(tmp_path / "b", layout, resume=True, bare=True) as second:
        assert second.resumed
        there = bytearray(100)
        second.read(0, 100, memoryview(there))
        assert there == b"\5" * 60 + bytes(40)
        second.write(60, memoryview(b"\6" * 40))
    shorter = Layout.of([("blob", "U8", (70,))])
    with FileSink(tmp_path / "b", shorter, resume=True, bare=True) as third:
        third.finish()
    assert (tmp_path / "b").read_bytes() == b"\5" * 60 + b"\6" * 10


def test_a_file_cut_short_under_a_reader_is_an_error_not_zeros(tmp_path):
    path = tmp_path / "model"
    write_checkpoint(path, MemoryBody.of({"a": torch.ones(1000)}))
    source = FileSource(path)
    os.truncate(path, path.stat().st_size - 100)
    assert len(views_of(source, 0, 3900, Scratch())[0]) == 3900
    with pytest.raises(CheckpointError, match="ends at byte 3900"):
        views_of(source, 3000, 4000, Scratch())


@pytest.mark.parametrize("who", ["nobody", "a reader", "a mapping"])
def test_what_somebody_else_has_of_an_older_file_stays_as_it_is(tmp_path, who):
    path, temporary = tmp_path / "m.safetensors", tmp_path / "m.safetensors.tmp"
    temporary.write_bytes(b"\xff" * 5000)
    was = temporary.stat().st_ino
    with ExitStack() as stack:
        file = stack.enter_context(temporary.open("rb")) if who != "nobody" else None
        if who == "a mapping":
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            file.close()
            file = mapped
        write_checkpoint(path, MemoryBody.of({"t": torch.arange(9)}))
        assert file is None or file.read() == b"\xff" * 5000
    # Whose inode nobody has, it may be given to the new file.
    assert who == "nobody" or path.stat().st_ino != was
    assert_same_tensors(safetensors.torch.load_file(path), {"t": torch.arange(9)})


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_is_written_is_not_written_by_another(tmp_path, resume):
    layout = Layout.of([("w", "F32", (4,))])
    path = tmp_path / "model.safetensors"
    with FileSink(path, layout) as sink:
        with pytest.raises(CheckpointError, match="someone else is writing it now"):
            FileSink(path, layout, resume=resume)
        sink.write(0, memoryview(bytes(16)))
        sink.finish()
    with FileSink(path, layout, resume=resume) as sink:
        sink.write(0, memoryview(b"\1" * 16))
        sink.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_a_link_leads_to_is_not_written(tmp_path, link, resume):
    other, path = tmp_path / "other", tmp_path / "m.safetensors"
    other.write_bytes(b"somebody's")
    getattr(path.with_name("m.safetensors.tmp"), link)(other)
    with FileSink(path, Layout.of([("w", "F32", (4,))]), resume=resume) as sink:
        sink.write(0, memoryview(bytes(16)))
        sink.finish()
    assert other.read_bytes() == b"somebody's"
    assert not path.is_symlink()
    assert safetensors.torch.load_file(path)["w"].tolist() == [0, 0, 0, 0]


def test_the_digest_of_a_large_model_takes_little_memory(tmp_path):
    path = tmp_path / "large.safetensors"
    layout = Layout.of([("w", "U8", (256 << 20,))])
    with FileSink(path, layout) as sink:
        sink.finish()
    assert peak_of(body_digest, FileSource(path)) < 4 << 20
    path.unlink()


# Of other formats.
def test_tensors_of_torch_keep_their_bits_names_and_ties(tmp_path):
    state = support.every_kind()
    weight = torch.arange(12.0).reshape(3, 4)
    state |= {
        "tied": weight,
        "weight": weight,
        "turned": weight.t(),
        "columns": torch.arange(40000.0).reshape(200, 200)[:, 20:40],
        "part": torch.arange(100)[10:20],
        "every other": torch.arange(100)[::2],
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    path = tmp_path / "model.bin"
    torch.save({"state": state, "epoch": 3, "history": [{"loss": 0.5}, None]}, path)
    file = open_checkpoint(path)
    assert {*file.layout.by_name, *file.layout.aliases} == {f"state.{name}" for name in state}
    del state["weight"]
    due = {f"state.{name}": value.detach().resolve_conj() for name, value in state.items()}
    assert_same_tensors(tensors_of(file), due)
    assert file.layout.aliases == {"state.weight": "state.tied"}
    assert file.metadata == {"epoch": "3", "history.0.loss": "0.5"}
    assert "CRC-32" in file.check()[-1]


def test_shards_are_one_body_of_what_the_index_names_also_in_a_download_cache_of_links(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    path = snapshot / support.write_shards(blobs, support.every_kind()).name
    for number, shard in enumerate(sorted(blobs.iterdir())):
        shutil.move(shard, blobs / f"digest{number}")
        (snapshot / shard.name).symlink_to(f"../../blobs/digest{number}")
    file = open_checkpoint(path)
    assert_same_tensors(tensors_of(file), support.every_kind())
    assert sum(each.stat().st_size for each in snapshot.iterdir()) == file.file_bytes
    assert any("where it says 1" in check for check in file.check())
    index = json.loads(path.read_text())
    del index["weight_map"]["F32.matrix"]
    path.write_text(json.dumps(index))
    file = open_checkpoint(path)
    assert "F32.matrix" not in file.layout.by_name
    assert any("1 more that the index does not name" in check for check in file.check())


# Mapped by their descriptors: the same tensors, and nobody else's pages.
MIB = 1 << 20
LARGE = torch.randn(512, 1024)
TENSORS = {**support.every_kind(), "odd": torch.arange(5.0), "large": LARGE, "tied": LARGE}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, MemoryBody.of(TENSORS))
    return path


@contextmanager
def opened(path, flags=os.O_RDONLY):
    fd = os.open(path, flags)
    yield fd
    os.close(fd)


def mapped(path):
    with opened(path) as fd:
        return MappedModel(fd, "the checkpoint")


def test_a_mapped_model_has_the_bits_of_the_file_and_what_is_written_stays_here(path):
    found = mapped(path).tensors("pytorch")
    assert_same_tensors(found, TENSORS)
    assert found["tied"] is found["large"]
    # The descriptor's offset is shared with other processes.
    with opened(path) as fd:
        os.lseek(fd, 17, os.SEEK_SET)
        source = MappedModel(fd, "the checkpoint")
        assert body_of(source) == body_of(FileSource(path))
        assert os.lseek(fd, 0, os.SEEK_CUR) == 17
    before, model = path.read_bytes(), mapped(path)
    model.tensors("pytorch")["large"].fill_(3)
    assert path.read_bytes() == before
    assert mapped(path).tensors("pytorch")["large"].ne(3).any()


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


def refused(place, match, flags=os.O_RDONLY):
    with opened(place, flags) as fd, pytest.raises(CheckpointError, match=match):
        MappedModel(fd, "the checkpoint")


def test_what_is_no_checkpoint_opened_to_be_read_alone_is_refused(path):
    refused(path.parent, "no regular file")
    refused("/dev/zero", "no regular file")
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_PATH):
        refused(path, "read alone", flags)
    data = path.read_bytes()
    for content in (b"", data[:4], data[:40], data[:-1], b"\xff" * 4096):
        path.write_bytes(content)
        refused(path, "the checkpoint")
