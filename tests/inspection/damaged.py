"""A corpus of damaged and hostile files: each is to be answered with a sentence of its own."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

Write = Callable[[Path], None]


def u8(start: object, stop: object, **more: object) -> dict[str, object]:
    size = stop - start if isinstance(stop, int) and isinstance(start, int) else 0
    return {"dtype": "U8", "shape": [size], "data_offsets": [start, stop], **more}


def safetensors(fields: object, body: bytes = b"") -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text + body


SOUND = safetensors({"a": u8(0, 64)}, bytes(range(64)))


def tied(ties: str) -> bytes:
    return safetensors({"__metadata__": {"flstream.tied": ties}, "a": u8(0, 1)}, b"x")


PLAIN: dict[str, bytes] = {
    "empty": b"",
    "cut in the prefix": SOUND[:5],
    "cut in the header": SOUND[:40],
    "cut in the tensors": SOUND[:-1],
    "too long": SOUND + b"xy",
    "header of 2^60": (1 << 60).to_bytes(8, "little") + SOUND[8:],
    "header of nothing": bytes(8),
    "not JSON": SOUND[:8] + b"x" * (len(SOUND) - 8),
    "not UTF-8": safetensors(b'{"\xff": 1}'),
    "a list": safetensors([1, 2]),
    "a name twice": safetensors(b'{"a": 1, "b": 2, "a": 1}'),
    "a key twice": safetensors(b'{"a": {"dtype": "U8", "dtype": "I8"}}'),
    "overlap": safetensors({"a": u8(0, 4), "b": u8(2, 6)}, bytes(6)),
    "hole": safetensors({"a": u8(0, 4), "b": u8(5, 6)}, bytes(6)),
    "hole in front": safetensors({"a": u8(2, 4)}, bytes(4)),
    "negative offset": safetensors({"minus": u8(-4, 0)}),
    "bool offsets": safetensors({"truth": u8(False, True)}, b"x"),
    "fractional offsets": safetensors({"half": u8(0.0, 0.5)}),
    "three offsets": safetensors({"three": {**u8(0, 1), "data_offsets": [0, 1, 2]}}, b"x"),
    "ends before it begins": safetensors({"back": {**u8(4, 0), "shape": [4]}}),
    "unknown dtype": safetensors({"a": u8(0, 1, dtype="F7")}, b"x"),
    "dtype that is a list": safetensors({"list": u8(0, 1, dtype=["U8"])}, b"x"),
    "shape of other bytes": safetensors({"a": u8(0, 4, shape=[3])}, bytes(4)),
    "shape that overflows": safetensors({"a": u8(0, 0, shape=[2**62, 2**62, 16])}),
    "negative shape": safetensors({"under": u8(0, 4, shape=[-2, -2])}, bytes(4)),
    "bool shape": safetensors({"yes": u8(0, 1, shape=[True])}, b"x"),
    "65 dimensions": safetensors({"deep": u8(0, 1, shape=[1] * 65)}, b"x"),
    "nested deeply": safetensors(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "number of 5000 digits": safetensors(b'{"a": ' + b"9" * 5000 + b"}"),
    "metadata of numbers": safetensors({"__metadata__": {"a": 1}}),
    "tensor that is a number": safetensors({"one": 1}),
    "half a character": safetensors(
        b'{"\\ud800": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "name of a megabyte": safetensors({"n" * 1_000_000: u8(0, 1, dtype="F7")}, b"x"),
    "tied to nothing": tied('{"b": "c"}'),
    "tied to itself": tied('{"a": "a"}'),
    "ties that are no JSON": tied("{"),
    "ties that are a list": tied("[]"),
    "a zip archive": b"PK\3\4" + SOUND,
}


def shards(where: object, **more: object) -> Write:
    def write(path: Path) -> None:
        text = where if isinstance(where, bytes) else json.dumps({"weight_map": where, **more})
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def beside(name: str, make: Write) -> Write:
    """An index whose shard is something else than it should be."""

    def write(path: Path) -> None:
        make(path.with_name(name))
        shards({"a": name})(path)

    return write


def link_out(path: Path) -> None:
    outside = path.parent.parent / "outside.safetensors"
    outside.write_bytes(SOUND)
    path.symlink_to(outside)


INDEXES: dict[str, Write] = {
    "no JSON": shards(b"{"),
    "no weight_map": shards(b"{}"),
    "nothing in it": shards({}),
    "a shard twice": shards(b'{"weight_map": {"a": "x", "a": "y"}}'),
    "nested deeply": shards(b"[" * 100_000),
    "shard that is a number": shards({"a": 1}),
    "dots": shards({"a": "../outside.safetensors"}),
    "absolute": shards({"a": "/etc/passwd"}),
    "nul": shards({"a": "x\0y"}),
    "missing shard": shards({"a": "missing.safetensors"}),
    "an index in it": shards({"a": "other.index.json"}),
    "metadata that is a list": shards({"a": "x"}, metadata=[1]),
    "tensor not in its shard": beside(
        "whole.safetensors", lambda p: p.write_bytes(safetensors({"b": u8(0, 1)}, b"x"))
    ),
    "damaged shard": beside("cut.safetensors", lambda p: p.write_bytes(SOUND[:70])),
    "link out of the folder": beside("out.safetensors", link_out),
    "link to itself": beside("loop.safetensors", lambda p: p.symlink_to(p.name)),
    "folder": beside("folder.safetensors", lambda p: p.mkdir()),
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


def rewritten(make: Callable[[], object], change: Callable[[str, bytes], bytes | None]) -> Write:
    """What torch.save wrote, with members changed, or left out."""

    def write(path: Path) -> None:
        torch.save(make(), path)
        with zipfile.ZipFile(path) as old:
            members = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for name, data in members.items():
                changed = change(name, data)
                if changed is not None:
                    new.writestr(name, changed)

    return write


def deflated(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("archive/data.pkl", pickle.dumps({}))


def doubling() -> object:
    value: list[object] = [1]
    for _ in range(30):
        value = [value, value]
    return value


def endless() -> object:
    value: list[object] = []
    value.append(value)
    return value


def two() -> dict[str, object]:
    return {"a": torch.arange(64.0), "b": torch.ones(4)}


def flipped(make: Write, at: int) -> Write:
    """A file with one bit changed, ``at`` bytes behind the first ``MARK``."""

    def write(path: Path) -> None:
        make(path)
        data = bytearray(path.read_bytes())
        data[data.index(MARK) + at] ^= 1
        path.write_bytes(data)

    return write


MARK = b"\x11\x22\x33\x44\x55\x66\x77\x88"
MARKED = np.frombuffer(MARK * 64, np.uint8)


def cut(make: Write, keep: float) -> Write:
    def write(path: Path) -> None:
        make(path)
        os.truncate(path, int(path.stat().st_size * keep))

    return write


TORCH: dict[str, Write] = {
    "code": lambda path: torch.save({"a": Runs(path.with_suffix(".ran"))}, path),
    "old format": lambda path: torch.save(two(), path, _use_new_zipfile_serialization=False),
    "text": lambda path: path.write_text("weights"),
    "cut": cut(saved(two), 0.5),
    "cut at the end": cut(saved(two), 0.99),
    "no pickle": rewritten(two, lambda n, d: None if n.endswith("data.pkl") else d),
    "pickle of nothing": rewritten(two, lambda n, d: b"" if n.endswith("data.pkl") else d),
    "large pickle": rewritten(two, lambda n, d: bytes(17 << 20) if n.endswith("data.pkl") else d),
    "missing storage": rewritten(two, lambda n, d: None if n.endswith("data/1") else d),
    "short storage": rewritten(two, lambda n, d: d[:8] if n.endswith("data/0") else d),
    "compressed": deflated,
    "other byte order": rewritten(two, lambda n, d: b"big" if n.endswith("byteorder") else d),
    "sparse": saved(lambda: {"sparse": torch.eye(3).to_sparse()}),
    "float4": saved(lambda: {"w": torch.zeros(2, dtype=torch.float4_e2m1fn_x2)}),
    "expanded": saved(lambda: {"vast": torch.zeros(1).expand(2**50)}),
    "doubling lists": saved(doubling),
    "list in itself": saved(endless),
    "tuple as a key": saved(lambda: {(1, 2): torch.zeros(1)}),
    "a path twice": saved(lambda: {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}),
    "changed bit": flipped(saved(lambda: {"a": torch.from_numpy(MARKED.copy())}), 8),
}


def npz(*, deflate: bool = False, **arrays: object) -> Write:
    save = np.savez_compressed if deflate else np.savez

    def write(path: Path) -> None:
        with path.open("wb") as file:
            save(file, **arrays)

    return write


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> Write:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as new:
            for name, data in members:
                with new.open(name, "w") as file:
                    file.write(data)

    return write


def npy(descr: object, shape: object, data: bytes = b"", *, version: int = 1) -> bytes:
    head = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    length = struct.pack("<H" if version == 1 else "<I", len(head))
    return b"\x93NUMPY" + bytes([version, 0]) + length + head + data


def member(data: bytes) -> Write:
    return archive(("a.npy", data))


def patched(make: Write, *changes: tuple[bytes, int, bytes]) -> Write:
    """A file with bytes put in place, counted from each occurrence of a signature."""

    def write(path: Path) -> None:
        make(path)
        data = bytearray(path.read_bytes())
        for magic, offset, value in changes:
            at = data.find(magic)
            while at >= 0:
                data[at + offset : at + offset + len(value)] = value
                at = data.find(magic, at + 1)
        path.write_bytes(data)

    return write


def overlapping(path: Path) -> None:
    """Two entries of the directory for the same bytes."""
    array = io.BytesIO()
    np.save(array, np.zeros(8))
    archive(("a.npy", array.getvalue()), ("b.npy", array.getvalue()))(path)
    data = path.read_bytes()
    first, second = data.index(b"PK\1\2"), data.rindex(b"PK\1\2")
    path.write_bytes(data[: second + 42] + data[first + 42 : first + 46] + data[second + 46 :])


LOCAL, CENTRAL = b"PK\3\4", b"PK\1\2"
ZEROS = np.zeros(1 << 16)
NPZ: dict[str, Write] = {
    "text": lambda path: path.write_text("arrays"),
    "cut": cut(npz(a=ZEROS), 0.5),
    "cut in the directory": cut(npz(a=ZEROS), 0.9999),
    "objects": lambda path: np.savez(path, a=np.array([{}], dtype=object)),
    "no array": archive(("readme.txt", b"hello")),
    "junk for an array": member(b"junk of some length"),
    "other bytes than its shape": member(npy("<f4", (5,), bytes(8))),
    "negative shape": member(npy("<f4", (-1,))),
    "vast shape": member(npy("<f4", (2**62, 2**62))),
    "bool shape": member(npy("<f4", (True,), bytes(4))),
    "shape in the dtype": member(npy("(3,)<f4", (1,), bytes(12))),
    "other byte order": member(npy(">f4", (1,), bytes(4))),
    "strings": npz(a=np.array(["x"])),
    "fields": npz(a=np.zeros(1, dtype=[("x", "f4"), ("y", "i4")])),
    "times": npz(a=np.zeros(1, dtype="datetime64[s]")),
    "code for a header": member(b"\x93NUMPY\1\0" + struct.pack("<H", 40) + b"__import__('os')" * 9),
    "header of 4 GiB": member(b"\x93NUMPY\2\0\xff\xff\xff\xff{"),
    "unknown version": member(b"\x93NUMPY\x09\0" + bytes(64)),
    "bomb": patched(
        npz(a=ZEROS, deflate=True),
        (CENTRAL, 24, b"\xf0\xff\xff\x7f"),
        (LOCAL, 22, b"\xf0\xff\xff\x7f"),
    ),
    "stored size that lies": patched(member(npy("<f4", ())), (CENTRAL, 24, b"\xff\xff\xff\x7f")),
    "beyond the end": patched(
        member(npy("<f4", ())), (CENTRAL, 20, b"\xff\xff\xff\x7f\xff\xff\xff\x7f")
    ),
    "elsewhere": patched(npz(a=ZEROS), (CENTRAL, 42, b"\5\0\0\0")),
    "outside": patched(npz(a=ZEROS), (CENTRAL, 42, b"\xf0\xff\xff\x7f")),
    "encrypted": patched(npz(a=ZEROS), (CENTRAL, 8, b"\1"), (LOCAL, 6, b"\1")),
    "lzma": archive(("a.npy", npy("<f4", ())), method=zipfile.ZIP_LZMA),
    "overlap": overlapping,
    "large directory": patched(npz(a=ZEROS), (b"PK\5\6", 12, b"\xff\xff\xff\x6f")),
    "changed bit": flipped(npz(a=MARKED), 8),
    "changed bit, compressed": patched(
        npz(a=np.random.default_rng(0).random(500), deflate=True), (LOCAL, 600, b"\0\0\0\0")
    ),
}


def run(events: str, name: str = "global.safetensors") -> Write:
    def write(path: Path) -> None:
        (path / "checkpoints").mkdir(parents=True)
        (path / name).write_bytes(SOUND)
        (path / "events.jsonl").write_text(events)

    return write


DIGEST = "0123456789abcdef" * 2
OTHERS: dict[str, Write] = {
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "missing": lambda path: None,
    "link to itself": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    # A regular file that even root cannot read at its beginning.
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),
    "run with a damaged journal": run('{"kind": 1}\n'),
    "run with another digest": run(
        f'{{"kind": "model_ready", "bytes": 64, "tensors": 1, "digest": "{DIGEST}"}}\n'
    ),
}


def write_corpus(folder: Path) -> dict[str, Path]:
    """Write every file into a folder of its own; return the paths by what is wrong with them."""
    groups: tuple[tuple[str, str, dict[str, Write]], ...] = (
        ("file", "x.safetensors", {n: _bytes(data) for n, data in PLAIN.items()}),
        ("index", "model.safetensors.index.json", INDEXES),
        ("torch", "x.pt", TORCH),
        ("npz", "x.npz", NPZ),
        ("path", "x", OTHERS),
    )
    corpus = {}
    for kind, name, cases in groups:
        for number, (flaw, write) in enumerate(cases.items()):
            path = folder / f"{kind}{number:02d}" / name
            path.parent.mkdir()
            write(path)
            corpus[f"{kind}: {flaw}"] = path
    return corpus


def _bytes(data: bytes) -> Write:
    return lambda path: _ignore(path.write_bytes(data))


def _ignore(_: object) -> None:
    return None
