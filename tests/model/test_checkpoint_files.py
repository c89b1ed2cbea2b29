"""Checkpoints: files any tool opens, whole or absent, and refused with a sentence if damaged."""

import json
import mmap
import os
import tracemalloc
from contextlib import ExitStack

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    assert_same_tensors,
    body_of,
    entries,
    tensor,
    tensors_of,
)

from flstream.errors import CheckpointError
from flstream.model.checkpoint import (
    FileSink,
    FileSource,
    open_blob,
    unnamed_file,
    write_checkpoint,
)
from flstream.model.copy import copy
from flstream.model.digests import body_digest
from flstream.model.header import MAX_HEADER_BYTES
from flstream.model.layout import Layout
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
    descriptors = os.listdir("/proc/self/fd")
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
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_a_model_larger_than_the_disk_is_refused_before_any_work(tmp_path):
    huge = Layout.of([("a", "F64", (2**58,))])
    with pytest.raises(CheckpointError, match="bytes of disk"):
        FileSink(tmp_path / "huge", huge)
    with pytest.raises(CheckpointError, match=r"has no room for .* bytes: "):
        unnamed_file(huge, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (8, "has 9 bytes of tensors where its header promises 8"),
        (10, "has 9 bytes of tensors where its header promises 10"),
        (-1, "'a' lacks a proper"),
    ],
)
def test_a_damaged_file_is_refused_with_a_sentence(tmp_path, shape, sentence):
    path = tmp_path / "damaged"
    field = {"dtype": "U8", "shape": [shape], "data_offsets": [0, shape]}
    text = json.dumps({"a": field}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(9))
    with pytest.raises(CheckpointError, match=sentence) as refusal:
        FileSource(path)
    assert str(path) in str(refusal.value)


def test_what_is_no_file_and_what_can_be_none_is_refused(tmp_path):
    (tmp_path / "file").write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little") * 9)
    for path, sentence in ((".", "Is a directory"), ("none", "No such file"), ("file", "file")):
        with pytest.raises(CheckpointError, match=sentence):
            FileSource(tmp_path / path)
    with pytest.raises(CheckpointError, match=r"file/model cannot be written"):
        FileSink(tmp_path / "file" / "model", MemoryBody.of({}).layout)


@pytest.mark.parametrize("size", [0, 1, 100_001])
def test_any_file_is_a_body_of_bytes(tmp_path, size):
    content = np.random.default_rng(1).bytes(size)
    (tmp_path / "any").write_bytes(content)
    source = open_blob(tmp_path / "any")
    assert source.layout == Layout.of([("blob", "U8", (size,))])
    assert b"".join(views_of(source, 0, size, Scratch()) if size else []) == content


def test_what_is_no_regular_file_is_no_body_of_bytes(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, sentence in (
        (tmp_path, "is a folder; name a regular file"),
        (tmp_path / "fifo", "is a pipe; name a regular file"),
        (tmp_path / "none", "there is no .*none; check the path"),
        (tmp_path / "a\0b", r"a\\x00b cannot be read: embedded null byte"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            open_blob(path)


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


@pytest.mark.parametrize("who", ["nobody", "another name", "a reader", "a mapping"])
def test_what_somebody_else_has_of_an_older_file_stays_as_it_is(tmp_path, who):
    path, temporary = tmp_path / "m.safetensors", tmp_path / "m.safetensors.tmp"
    temporary.write_bytes(b"\xff" * 5000)
    was = temporary.stat().st_ino
    with ExitStack() as stack:
        file = stack.enter_context(temporary.open("rb")) if who != "nobody" else None
        if who == "another name":
            (tmp_path / "global.safetensors").hardlink_to(temporary)
            file.close()
            file = stack.enter_context((tmp_path / "global.safetensors").open("rb"))
        elif who == "a mapping":
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            file.close()
            file = mapped
        write_checkpoint(path, MemoryBody.of({"t": torch.arange(9)}))
        assert file is None or file.read() == b"\xff" * 5000
    # Whose inode nobody has, it may be given to the new file.
    assert who == "nobody" or path.stat().st_ino != was
    assert_same_tensors(safetensors.torch.load_file(path), {"t": torch.arange(9)})


def test_the_digest_of_a_large_model_takes_little_memory(tmp_path):
    path = tmp_path / "large.safetensors"
    layout = Layout.of([("w", "U8", (256 << 20,))])
    with FileSink(path, layout) as sink:
        sink.finish()
    tracemalloc.start()
    try:
        body_digest(FileSource(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        path.unlink()
    assert peak < 4 << 20
