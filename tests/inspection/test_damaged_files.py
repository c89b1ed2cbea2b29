"""Whatever is wrong with a file, the answer is one sentence: no traceback, no wait, no memory."""

import json
import os
import struct
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from flstream.errors import FlstreamError
from flstream.inspection.examine import examine

Write = Callable[[Path], object]


def u8(start, stop, **more):
    return {"dtype": "U8", "shape": [int(stop - start)], "data_offsets": [start, stop], **more}


def safetensors(fields, body=b""):
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text + body


SOUND = safetensors({"a": u8(0, 64)}, bytes(range(64)))
# What else a header may have wrong is in tests/model/test_layout.py.
PLAIN_BYTES = {
    "bool offsets": safetensors({"truth": u8(False, True)}, b"x"),
    "fractional offsets": safetensors({"half": u8(0.0, 0.5)}),
    "dtype that is a list": safetensors({"list": u8(0, 1, dtype=["U8"])}, b"x"),
    "shape that overflows": safetensors({"a": u8(0, 0, shape=[2**62, 2**62, 16])}),
    "number of 5000 digits": safetensors(b'{"a": ' + b"9" * 5000 + b"}"),
    "ties that are no JSON": safetensors({"__metadata__": {"flstream.tied": "{"}, "a": u8(0, 0)}),
    "a zip archive": b"PK\3\4" + SOUND,
}
PLAIN = {flaw: partial(Path.write_bytes, data=data) for flaw, data in PLAIN_BYTES.items()}


def shards(where: object) -> Write:
    text = where if isinstance(where, bytes) else json.dumps({"weight_map": where}).encode()
    return lambda path: path.write_bytes(text)


def beside(name: str, make: Write) -> Write:
    """An index whose shard is something else than it should be."""
    return lambda path: (make(path.with_name(name)), shards({"a": name})(path))


def link_out(path: Path) -> None:
    outside = path.parent.parent / "outside.safetensors"
    outside.write_bytes(SOUND)
    path.symlink_to(outside)


INDEXES: dict[str, Write] = {
    "no JSON": shards(b"{"),
    "nothing in it": shards({}),
    "a shard twice": shards(b'{"weight_map": {"a": "x", "a": "y"}}'),
    "shard that is a number": shards({"a": 1}),
    "dots": shards({"a": "../outside.safetensors"}),
    "nul": shards({"a": "x\0y"}),
    "missing shard": shards({"a": "missing.safetensors"}),
    "tensor not in its shard": beside(
        "whole.safetensors", lambda p: p.write_bytes(safetensors({"b": u8(0, 1)}, b"x"))
    ),
    "damaged shard": beside("cut.safetensors", lambda p: p.write_bytes(SOUND[:70])),
    "link out of the folder": beside("out.safetensors", link_out),
    "pipe": beside("pipe.safetensors", lambda p: os.mkfifo(p)),
}


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def saved(make: Callable[[], object]) -> Write:
    return lambda path: torch.save(make(), path)


TWO = {"a": torch.arange(64.0), "b": torch.ones(4)}


def changed(make: Write, change: Callable[[bytearray], object]) -> Write:
    """A file with other bytes."""

    def write(path: Path) -> None:
        make(path)
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    return write


MARK = b"\x11\x22\x33\x44\x55\x66\x77\x88"
MARKED = np.frombuffer(MARK * 64, np.uint8)


def flip(data: bytearray) -> None:
    data[data.index(MARK) + 8] ^= 1


def encrypt(data: bytearray) -> None:
    """Have both headers of a member say that it is encrypted."""
    for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        data[data.index(signature) + offset] |= 1


def deflated(path: Path) -> None:
    torch.save(TWO, path)
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in members.items():
            new.writestr(name, data)


def inflate(data: bytearray) -> None:
    """Have both headers of a member say that it takes 2 GiB."""
    for signature, offset in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        at = data.index(signature) + offset
        data[at : at + 4] = b"\xf0\xff\xff\x7f"


TORCH: dict[str, Write] = {
    "code": lambda path: torch.save({"a": Runs(path.with_suffix(".ran"))}, path),
    "old format": lambda path: torch.save(TWO, path, _use_new_zipfile_serialization=False),
    "deflated": deflated,
    "complex128": saved(lambda: {"a": torch.zeros(2, dtype=torch.complex128)}),
    "sparse": saved(lambda: {"sparse": torch.eye(3).to_sparse()}),
    "expanded": saved(lambda: {"vast": torch.zeros(1).expand(2**50)}),
    "changed bit": changed(saved(lambda: {"a": torch.from_numpy(MARKED.copy())}), flip),
}


def npz(save: Callable[..., None] = np.savez, **arrays: object) -> Write:
    return lambda path: save(path, **arrays)


def member(data: bytes) -> Write:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as new:
            new.writestr("a.npy", data)

    return write


NPZ: dict[str, Write] = {
    "objects": lambda path: np.savez(path, a=np.array([{}], dtype=object)),
    "code for a header": member(b"\x93NUMPY\1\0" + struct.pack("<H", 40) + b"__import__('os')" * 9),
    "encrypted": changed(npz(a=MARKED), encrypt),
    "no array": lambda path: member(b"text")(path),
    "bomb": changed(npz(np.savez_compressed, a=np.zeros(1 << 16)), inflate),
    "changed bit": changed(npz(a=MARKED), flip),
}


def run(events: str) -> Write:
    def write(path: Path) -> None:
        (path / "checkpoints").mkdir(parents=True)
        (path / "global.safetensors").write_bytes(SOUND)
        (path / "events.jsonl").write_text(events)

    return write


def loop_in(folder: Path) -> None:
    (folder / "round-0000.safetensors").symlink_to("round-0000.safetensors")


READY = f'{{"kind": "model_ready", "bytes": 64, "tensors": 1, "digest": "{"01234567" * 4}"}}\n'
OTHERS: dict[str, Write] = {
    "pipe": lambda path: os.mkfifo(path),
    "link to itself": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    # A regular file that even root cannot read at its beginning.
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),
    "run with a link to itself": lambda path: (run("")(path), loop_in(path / "checkpoints")),
    "run with a damaged journal": run('{"kind": 1}\n'),
    "run with another digest": run(READY),
}


CORPUS = {
    f"{name}: {flaw}": (name, write)
    for name, cases in (
        ("x.safetensors", PLAIN),
        ("model.safetensors.index.json", INDEXES),
        ("x.pt", TORCH),
        ("x.npz", NPZ),
        ("x", OTHERS),
    )
    for flaw, write in cases.items()
}


def test_every_damaged_file_has_a_sentence_of_its_own(tmp_path):
    sentences = {}
    for number, (flaw, (name, write)) in enumerate(CORPUS.items()):
        path = tmp_path / f"case-{number:02d}" / name
        path.parent.mkdir()
        write(path)
        tracemalloc.start()
        with pytest.raises(FlstreamError) as refusal:
            examine(path, stats=True, verify=True)
        # What is said to be large is not made: there is room for the longest header.
        assert tracemalloc.get_traced_memory()[1] < 128 << 20, flaw
        tracemalloc.stop()
        sentence = str(refusal.value)
        # A flaw of a shard or a journal is told of that file, which lies beside or below.
        assert str(path.parent) in sentence, flaw
        assert "; " in sentence, (flaw, "no next step", sentence)
        assert "\n" not in sentence, flaw
        sentences[flaw] = sentence.replace(str(path.parent), "")
    counted = Counter(sentences.values())
    assert {flaw: text for flaw, text in sentences.items() if counted[text] > 1} == {}
    assert not list(tmp_path.rglob("*.ran"))  # no code ran


def test_a_file_cut_or_changed_anywhere_is_refused_or_harmless(tmp_path):
    random = Random(0)
    writers = {
        "x.safetensors": lambda path: path.write_bytes(SOUND),
        "x.pt": saved(lambda: TWO),
        "x.npz": npz(np.savez_compressed, a=MARKED),
    }
    sentences = []
    for name, write in writers.items():
        path = tmp_path / name
        write(path)
        sound = path.read_bytes()
        for size in range(0, len(sound), max(1, len(sound) // 40)):
            path.write_bytes(sound[:size])
            with pytest.raises(FlstreamError, match=name):
                examine(path, stats=True, verify=True)
        for _ in range(70):
            data = bytearray(sound)
            for _ in range(random.choice([1, 1, 3])):
                data[random.randrange(len(data))] = random.choice([0, 255, random.randrange(256)])
            path.write_bytes(data)
            try:
                examine(path, stats=True, verify=random.random() < 0.5)
            except FlstreamError as error:
                sentences.append(str(error))
    assert len(sentences) > 100
    assert all(str(tmp_path) in sentence for sentence in sentences)
