"""Every tensor there is goes through a pipe and comes out with the same bits."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import QUICK, fetch
from support import as_bytes, assert_same_tensors, every_kind, tensor

from flstream.model.checkpoint import FileSource
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.memory import MemoryBody
from flstream.streaming.download import RemoteSource, download


def sent(harness, tensors, settings=QUICK, framework="pytorch"):
    """The tensors as they arrive."""
    ref = harness.service.offer(MemoryBody.of(tensors), ["site-1"])
    remote = RemoteSource(harness.receiver(), ref.token, settings)
    return download(remote, lambda layout: MemoryBody.allocate(layout, framework)).tensors


MODES = pytest.mark.parametrize("chunk_size", [16, 4096, 0], ids=["tiny", "chunks", "whole"])


def odd_tensors():
    """Every dtype, seen in every way that is not contiguous."""
    tensors = {}
    for code in BY_CODE:
        value = tensor(code, (12, 20), len(code))
        tensors |= {
            f"{code}.transposed": value.t(),
            f"{code}.every other": value[::2, 1::3],
            f"{code}.expanded": value[:1].expand(9, 20),
            f"{code}.permuted": value.reshape(3, 4, 4, 5).permute(3, 1, 0, 2),
            f"{code}.scalar": value[3, 4],
            f"{code}.no rows": value[:0],
            f"{code}.no columns": value[:, :0].t(),
        }
    tensors["channels last"] = tensor("F32", (2, 3, 9, 8)).to(memory_format=torch.channels_last)
    return tensors


@MODES
def test_every_dtype_shape_and_stride_arrives_bit_for_bit(harness, chunk_size):
    tensors = {**every_kind(), **odd_tensors()}
    arrived = sent(harness, tensors, replace(QUICK, chunk_size=chunk_size))
    assert_same_tensors(arrived, tensors)
    assert all(value.is_contiguous() for value in arrived.values())


PATTERNS = {
    "F64": [0x7FF0000000000001, 0xFFF8DEADBEEF0001, 0x8000000000000000, 0x7FF0000000000000, 1],
    "F32": [0x7F800001, 0xFFC0BEEF, 0x80000000, 0xFF800000, 1],
    "F16": [0x7C01, 0xFE12, 0x8000, 0xFC00, 1],
    "BF16": [0x7F81, 0xFFC3, 0x8000, 0xFF80, 1],
    "F8_E4M3": [0x7F, 0xFF, 0x80, 0x7E, 1],
    "F8_E5M2": [0x7D, 0xFE, 0x80, 0xFC, 1],
    "F8_E4M3FNUZ": [0x80, 0x7F, 0xFF, 0x00, 1],
    "F8_E5M2FNUZ": [0x80, 0x7F, 0xFF, 0x00, 1],
    "F8_E8M0": [0xFF, 0xFE, 0x80, 0x00, 1],
}


def test_signalling_nans_their_payloads_infinities_and_the_sign_of_zero_are_kept(harness):
    tensors = {}
    for code, patterns in PATTERNS.items():
        raw = np.array(patterns * 3, f"<u{BY_CODE[code].itemsize}").reshape(3, 5)
        value = torch.from_numpy(raw.view(np.uint8)).view(torch_dtype(code))
        tensors |= {code: value, f"{code}.turned": value.t()}
        assert as_bytes(value) == raw.tobytes()
    raw = np.array(PATTERNS["F32"] * 6, np.uint32).reshape(3, 10)
    value = torch.from_numpy(raw.view(np.complex64))
    tensors |= {"C64": value, "C64.turned": value.t()}
    arrived = sent(harness, tensors)
    assert_same_tensors(arrived, tensors)
    assert arrived["F32"].view(torch.int32)[0, 0] == 0x7F800001
    assert arrived["F32.turned"].view(torch.int32)[0, 0] == 0x7F800001


def test_ten_thousand_tiny_tensors_arrive(harness):
    tensors = {f"layer.{i}.scale": torch.full((), i) for i in range(10_000)}
    assert_same_tensors(sent(harness, tensors, replace(QUICK, chunk_size=2 << 20)), tensors)


@MODES
def test_tied_weights_are_sent_once_and_arrive_tied(harness, chunk_size):
    weight = torch.randn(300, 40)
    tensors = {"wte": weight, "lm_head": weight, "turned": weight.t(), "half": weight[:150]}
    body = MemoryBody.of(tensors)
    assert body.layout.nbytes == 4 * 300 * 40 * 2 + 4 * 150 * 40
    ref = harness.service.offer(body, ["site-1"])
    arrived = fetch(harness.receiver(), ref.token, replace(QUICK, chunk_size=chunk_size))
    assert arrived.layout == body.layout
    assert arrived.tensors["wte"] is arrived.tensors["lm_head"]
    assert_same_tensors(arrived.tensors, tensors)


@pytest.mark.nightly
def test_a_tensor_of_more_than_4_gib_streams_from_a_sparse_file(harness, tmp_path):
    size = (4 << 30) + (33 << 20) + 48
    fields = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(fields).encode()
    with (tmp_path / "sparse").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        body = file.tell()
        file.truncate(body + size)
        for place in (4 << 30, size):
            file.seek(body + place - 64)
            file.write(bytes(range(1, 65)))
    ref = harness.service.offer(FileSource(tmp_path / "sparse"), ["site-1"])
    remote = RemoteSource(harness.receiver(), ref.token, replace(QUICK, chunk_size=2 << 20))
    chunk, found = memoryview(bytearray(2 << 20)), {}
    for start, stop in remote.layout.ranges(2 << 20):
        remote.read(start, stop, chunk[: stop - start])
        if any(end := bytes(chunk[: stop - start][-64:])):
            found[stop] = end
    remote.close()
    assert remote.cost.bytes == size
    assert found == {4 << 30: bytes(range(1, 65)), size: bytes(range(1, 65))}
