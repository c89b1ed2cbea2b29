"""Checkpoints: files any tool opens, whole or absent, and refused with a sentence if damaged."""

import json
import mmap
import os
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    IN_FILES,
    as_bytes,
    assert_same_tensors,
    body_of,
    cuts,
    entries,
    every_kind,
    tensor,
)

from flstream.errors import CheckpointError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource, open_blob, write_checkpoint
from flstream.model.checkpoint_header import read_header
from flstream.model.copy import copy
from flstream.model.digests import BodyDigest
from flstream.model.header import MAX_HEADER_BYTES
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody


def tensors_of(given_entries):
    return {name: tensor(code, shape, i) for i, (name, code, shape) in enumerate(given_entries)}


def read_back(path):
    """A file's tensors, read with our own code alone."""
    source = FileSource(path)
    body = MemoryBody.allocate(source.layout)
    if source.layout.nbytes:
        scratch = Scratch()
        for start, stop in source.layout.ranges(48):
            (data,) = source.views(start, stop, scratch)
            for view in body.views(start, stop):
                view[:] = data[: len(view)]
                data = data[len(view) :]
    return body.tensors


@given(entries(IN_FILES))
@settings(max_examples=50)
def test_the_safetensors_library_opens_what_we_write(tmp_path, given_entries):
    tensors = tensors_of(given_entries)
    path = tmp_path / "ours.safetensors"
    write_checkpoint(path, MemoryBody.of(tensors), {"format": "pt"})
    assert_same_tensors(safetensors.torch.load_file(path), tensors)


@given(entries(IN_FILES))
@settings(max_examples=50)
def test_we_open_what_the_safetensors_library_writes(tmp_path, given_entries):
    tensors = tensors_of(given_entries)
    path = tmp_path / "theirs.safetensors"
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    assert FileSource(path).metadata == {"format": "pt"}
    assert_same_tensors(read_back(path), tensors)


def test_every_dtype_goes_both_ways(tmp_path):
    tensors = every_kind(IN_FILES)
    write_checkpoint(tmp_path / "ours", MemoryBody.of(tensors))
    assert_same_tensors(safetensors.torch.load_file(tmp_path / "ours"), tensors)
    safetensors.torch.save_file(tensors, tmp_path / "theirs")
    assert_same_tensors(read_back(tmp_path / "theirs"), tensors)


def test_a_type_that_the_safetensors_format_lacks_is_kept_out_of_files(tmp_path):
    body = MemoryBody.of({"w": tensor("C128", (3,)), "x": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"'w' is complex128, .* torch\.view_as_real"):
        write_checkpoint(tmp_path / "ours", body)
    assert not list(tmp_path.iterdir())
    (tmp_path / "theirs").write_bytes(body.layout.header() + body_of(body))
    with pytest.raises(CheckpointError, match=r"theirs: tensor 'w' is complex128"):
        FileSource(tmp_path / "theirs")
    pairs = {"w": torch.view_as_real(tensor("C128", (3,)))}
    write_checkpoint(tmp_path / "pairs", MemoryBody.of(pairs))
    assert_same_tensors(safetensors.torch.load_file(tmp_path / "pairs"), pairs)


def test_arrays_go_both_ways_through_the_numpy_side_of_the_library(tmp_path):
    arrays = {"a": np.arange(12.0).reshape(3, 4), "b": np.array(7, np.int16), "e": np.zeros((0, 2))}
    write_checkpoint(tmp_path / "ours", MemoryBody.of(arrays))
    loaded = safetensors.numpy.load_file(tmp_path / "ours")
    assert {n: (v.dtype, v.shape, v.tobytes()) for n, v in loaded.items()} == {
        n: (v.dtype, v.shape, v.tobytes()) for n, v in arrays.items()
    }
    safetensors.numpy.save_file(arrays, tmp_path / "theirs")
    assert body_of(FileSource(tmp_path / "theirs")) == body_of(MemoryBody.of(arrays))


def test_a_model_without_tensors_is_a_checkpoint_too(tmp_path):
    write_checkpoint(tmp_path / "none", MemoryBody.of({}))
    assert safetensors.torch.load_file(tmp_path / "none") == {}
    assert FileSource(tmp_path / "none").layout.nbytes == 0


@given(st.data())
@settings(max_examples=30)
def test_the_digest_depends_on_neither_the_step_nor_the_metadata(tmp_path, data):
    source = MemoryBody.of(every_kind(IN_FILES))
    whole = BodyDigest(source.layout)
    whole.update(source.views(0, source.layout.nbytes))
    metadata = data.draw(st.dictionaries(st.text("ab"), st.text("cd")))
    digest = write_checkpoint(tmp_path / "model", source, metadata)
    assert digest == whole.hexdigest()
    in_steps = BodyDigest(source.layout)
    step = data.draw(cuts(source.layout.nbytes))
    copy(source, MemoryBody.allocate(source.layout), step=step, digest=in_steps)
    assert in_steps.hexdigest() == digest
    assert len(digest) == 32


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


def test_no_file_has_the_final_name_until_it_is_finished(tmp_path):
    path = tmp_path / "folder" / "model.safetensors"
    body = MemoryBody.of({"a": torch.arange(100)})
    with FileSink(path, body.layout) as sink:
        (view,) = sink.views(0, body.layout.nbytes)
        view[:] = body_of(body)
        sink.commit(0, body.layout.nbytes)
        assert os.listdir(path.parent) == ["model.safetensors.tmp"]
        sink.finish()
        assert os.listdir(path.parent) == ["model.safetensors"]
    assert os.listdir(path.parent) == ["model.safetensors"]
    assert_same_tensors(read_back(path), body.tensors)


def test_a_sink_that_is_not_finished_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "model"
    old = {"a": torch.arange(10)}
    write_checkpoint(path, MemoryBody.of(old))
    sink = FileSink(path, MemoryBody.of({"b": torch.zeros(99)}).layout)
    with sink:
        sink.views(0, 16)
        sink.commit(0, 16)
    assert os.listdir(tmp_path) == ["model"]
    assert_same_tensors(read_back(path), old)


def test_a_reader_keeps_the_file_that_it_opened_when_another_takes_its_name(tmp_path):
    path = tmp_path / "model"
    write_checkpoint(path, MemoryBody.of({"a": torch.zeros(8)}))
    source = FileSource(path)
    write_checkpoint(path, MemoryBody.of({"a": torch.ones(8)}))
    assert body_of(source) == bytes(32)


def test_a_source_closes_its_descriptor_when_it_is_let_go(tmp_path):
    write_checkpoint(tmp_path / "model", MemoryBody.of({"a": torch.zeros(8)}))
    before = os.listdir("/proc/self/fd")
    source = FileSource(tmp_path / "model")
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_sink_gives_its_descriptor_back(tmp_path):
    before = os.listdir("/proc/self/fd")
    write_checkpoint(tmp_path / "model", MemoryBody.of({"a": torch.zeros(8)}))
    with FileSink(tmp_path / "other", MemoryBody.of({}).layout):
        pass
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_folder_that_cannot_be_made_is_a_checkpoint_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/model cannot be written"):
        FileSink(tmp_path / "file" / "model", MemoryBody.of({}).layout)


def test_a_model_larger_than_the_disk_is_refused_before_any_work(tmp_path):
    layout, _, _ = read_header(
        damaged(tmp_path, {"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}, bytes(8))
    )
    huge = layout.of([("a", "F64", (2**58,))])
    with pytest.raises(CheckpointError, match="bytes of disk"):
        FileSink(tmp_path / "huge", huge)
    assert sorted(os.listdir(tmp_path)) == ["damaged"]


def damaged(folder, fields, body=b""):
    path = folder / "damaged"
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def u8(start, stop):
    return {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("fields", "body", "sentence"),
    [
        ({"a": u8(0, 8)}, bytes(7), "has 7 bytes of tensors where its header promises 8"),
        ({"a": u8(0, 8)}, bytes(9), "has 9 bytes of tensors where its header promises 8"),
        ({"a": u8(0, 4), "b": u8(2, 6)}, bytes(6), "'a' and 'b' overlap"),
        ({"a": u8(0, 4), "b": u8(5, 6)}, bytes(6), "'a' and 'b' leave a hole"),
        ({"a": u8(2, 4)}, bytes(4), "'a' does not begin at offset 0"),
        (b'{"a": 1, "a": 1}', b"", "'a' stands there twice"),
        (b"not json", b"", "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused_with_a_sentence(tmp_path, fields, body, sentence):
    path = damaged(tmp_path, fields, body)
    with pytest.raises(CheckpointError, match=sentence) as refusal:
        FileSource(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    "content", [b"", b"1234567", b"\xff" * 64, (MAX_HEADER_BYTES + 1).to_bytes(8, "little") * 9]
)
def test_a_file_whose_header_cannot_fit_is_refused(tmp_path, content):
    path = tmp_path / "damaged"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        FileSource(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        FileSource(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="Is a directory"):
        FileSource(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 100_001])
def test_any_file_is_a_body_of_bytes(tmp_path, size):
    content = np.random.default_rng(1).bytes(size)
    (tmp_path / "any").write_bytes(content)
    source = open_blob(tmp_path / "any")
    assert source.layout == Layout.of([("blob", "U8", (size,))])
    assert not source.immutable
    assert b"".join(source.views(0, size, Scratch()) if size else []) == content
    with FileSink(tmp_path / "copy", source.layout, bare=True) as sink:
        copy(source, sink)
        assert sink.finish().immutable
    assert (tmp_path / "copy").read_bytes() == content


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
        assert bytes(second.written(0, 100)[0]) == b"\5" * 60 + bytes(40)
        second.write(60, memoryview(b"\6" * 40))
    shorter = Layout.of([("blob", "U8", (70,))])
    with FileSink(tmp_path / "b", shorter, resume=True, bare=True) as third:
        third.finish()
    assert (tmp_path / "b").read_bytes() == b"\5" * 60 + b"\6" * 10


def test_only_files_that_flstream_has_written_are_immutable(tmp_path):
    body = MemoryBody.of({"a": torch.ones(8)})
    with FileSink(tmp_path / "a", body.layout) as sink:
        copy(body, sink)
        assert sink.finish().extent(0, 1).immutable
    assert not FileSource(tmp_path / "a").extent(0, 1).immutable
    assert FileSource(tmp_path / "a", immutable=True).extent(0, 1).immutable


def test_a_tensor_of_more_than_4_gib_is_read_where_it_lies(tmp_path):
    size = (5 << 30) + 24
    head = Layout.of([("w", "U8", (size,))])
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(head.header())
        body = file.tell()
        file.truncate(body + size)
        file.seek(body + (4 << 30) - 8)
        file.write(bytes(range(1, 17)))
        file.seek(-4, os.SEEK_END)
        file.write(b"tail")
    source, scratch = FileSource(path), Scratch()
    assert bytes(source.views((4 << 30) - 16, (4 << 30) + 16, scratch)[0]) == (
        bytes(8) + bytes(range(1, 17)) + bytes(8)
    )
    assert bytes(source.views(size - 24, size, scratch)[0]) == bytes(20) + b"tail"


def test_a_file_cut_short_under_a_reader_is_an_error_not_zeros(tmp_path):
    path = tmp_path / "model"
    write_checkpoint(path, MemoryBody.of({"a": torch.ones(1000)}))
    source = FileSource(path)
    os.truncate(path, path.stat().st_size - 100)
    assert len(source.views(0, 3900, Scratch())[0]) == 3900
    with pytest.raises(CheckpointError, match="ends at byte 3900"):
        source.views(3000, 4000, Scratch())


@given(st.binary(max_size=300))
def test_junk_for_a_file_gives_only_checkpoint_errors(tmp_path, content):
    path = tmp_path / "junk"
    path.write_bytes(b"\x05" + bytes(7) + content)
    with pytest.raises(CheckpointError):
        FileSource(path)


def test_any_range_of_a_file_is_the_range_of_the_body(tmp_path):
    body = MemoryBody.of(every_kind(IN_FILES))
    write_checkpoint(tmp_path / "model", body)
    source, whole = FileSource(tmp_path / "model"), body_of(body)
    scratch = Scratch()
    for start in range(0, len(whole), 37):
        stop = min(start + 101, len(whole))
        assert bytes(source.views(start, stop, scratch)[0]) == whole[start:stop]
    assert as_bytes(body.tensors["F32.matrix"]) in whole


def test_an_older_temporary_file_is_written_over(tmp_path):
    path, temporary = tmp_path / "m.safetensors", tmp_path / "m.safetensors.tmp"
    temporary.write_bytes(b"\xff" * 5000)
    was = temporary.stat().st_ino
    write_checkpoint(path, MemoryBody.of({"t": torch.arange(9)}))
    assert path.stat().st_ino == was
    assert_same_tensors(safetensors.torch.load_file(path), {"t": torch.arange(9)})


@pytest.mark.parametrize("who", ["another name", "a reader", "a mapping"])
def test_what_somebody_else_has_of_an_older_file_stays_as_it_is(tmp_path, who):
    path, temporary = tmp_path / "m.safetensors", tmp_path / "m.safetensors.tmp"
    temporary.write_bytes(b"\xff" * 5000)
    with ExitStack() as stack:
        if who == "another name":
            (tmp_path / "global.safetensors").hardlink_to(temporary)
            theirs = (tmp_path / "global.safetensors").read_bytes
        else:
            file = stack.enter_context(temporary.open("rb"))
            theirs = file.read
        if who == "a mapping":
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            file.close()
            theirs = mapped.read
        write_checkpoint(path, MemoryBody.of({"t": torch.arange(9)}))
        assert theirs() == b"\xff" * 5000
    assert_same_tensors(safetensors.torch.load_file(path), {"t": torch.arange(9)})


def test_an_older_file_that_may_not_be_written_is_replaced(tmp_path):
    path, temporary = tmp_path / "m.safetensors", tmp_path / "m.safetensors.tmp"
    temporary.write_bytes(b"\xff" * 5000)
    temporary.chmod(0o444)
    tmp_path.chmod(0o777)
    # Root may write to any file; but who is in a folder already needs no right to the way there.
    program = """
        import os, pathlib, torch
        from flstream.model.checkpoint import write_checkpoint
        from flstream.model.memory import MemoryBody
        os.geteuid() or os.seteuid(65534)
        write_checkpoint(pathlib.Path("m.safetensors"), MemoryBody.of({"t": torch.arange(9)}))
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert_same_tensors(safetensors.torch.load_file(path), {"t": torch.arange(9)})
