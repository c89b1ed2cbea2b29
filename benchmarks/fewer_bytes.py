"""Measure the codecs: bytes, speed on one core, and error, of a model and of an update of it.

The model is made of matrices of normal numbers with a scale for each row, as trained weights have,
and of norms near 1; its update is small and heavy-tailed (:mod:`flstream.bench.model_like`). Exact
codecs have frames of 2 MiB. The limit, measured in the same run, is a copy of as many bytes.

    taskset -c 1 python benchmarks/fewer_bytes.py [--size MIB] [--dtype F32|BF16] [--json FILE]

Takes half a minute and six times the model's memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rows import print_columns

from flstream.bench.model_like import WIDTH, changes, row_scales, weights
from flstream.codecs.chain import BLOCK_CODECS, CodecChain, chain_of
from flstream.codecs.delta import Delta
from flstream.codecs.error_feedback import encode_with_feedback
from flstream.codecs.floats import load, store
from flstream.codecs.frame_codec import FrameCodec, FramePlace
from flstream.codecs.lossy import LossyCodec
from flstream.job import parse_value
from flstream.job.codecs import CodecPlan
from flstream.model.body import Scratch, Source
from flstream.model.checkpoint import FileSource
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource

MIB = 1 << 20
FRAME = 2 * MIB
TRIES = 3

LOSSY: tuple[dict[str, Any], ...] = (
    {"type": "cast", "args": {"to": "bf16"}},
    {"type": "cast", "args": {"to": "f16"}},
    {"type": "int8"},
    {"type": "int4"},
    {"type": "topk", "args": {"fraction": 0.01}},
    {"type": "topk", "args": {"fraction": 0.1}},
    {"type": "ternary"},
)
EXACT: tuple[tuple[str, ...], ...] = (
    ("zstd",),
    ("shuffle", "zstd"),
    ("delta", "zstd"),
    ("delta", "shuffle", "zstd"),
)


class Measured(NamedTuple):
    """A row of the table.

    Attributes:
        codec: name of the codec, with its arguments.
        of: what was encoded.
        share: encoded bytes divided by those of the model.
        encode: bytes of the model encoded in a second.
        decode: bytes of the model decoded in a second.
        error: L2 norm of the error divided by that of the numbers; None where it says nothing.
    """

    codec: str
    of: str
    share: float
    encode: float
    decode: float
    error: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """Formatted cells of the row."""
        speeds = (f"{each / 1e9:.2f} GB/s" for each in (self.encode, self.decode))
        error = "" if self.error is None else f"{self.error:.2%}" if self.error else "exact"
        return self.codec, self.of, f"{self.share:.2%}", *speeds, error


def made(size: int, dtype: str) -> tuple[BufferSource, BufferSource, BufferSource]:
    """Return a model, an update of it, and the model with that update."""
    rows = size // BY_CODE[dtype].itemsize // WIDTH
    entries: list[tuple[str, str, tuple[int, ...]]] = [
        (f"layers.{index:02}.weight", dtype, (rows // 16, WIDTH)) for index in range(16)
    ]
    entries += [(f"layers.{index:02}.norm", dtype, (WIDTH,)) for index in range(16)]
    layout = Layout.of(entries)
    bodies = [memoryview(bytearray(layout.nbytes)) for _ in range(3)]
    random = np.random.default_rng(7)
    for spec in layout.tensors:
        shape = (spec.elements // WIDTH, WIDTH)
        scales = row_scales(random, shape[0])
        numbers = weights(random, scales, shape) + (len(spec.shape) == 1)
        change = changes(random, scales, shape)
        for body, each in zip(bodies, (numbers, change), strict=False):
            store(spec.dtype, each.reshape(-1), body[spec.start : spec.stop])
        old, new = (load(dtype, body[spec.start : spec.stop]) for body in bodies[:2])
        store(spec.dtype, old + new, bodies[2][spec.start : spec.stop])
    model, update, trained = (BufferSource(layout, body) for body in bodies)
    return model, update, trained


def rate(nbytes: int, call: Callable[[], object]) -> float:
    """Return the bytes a second of the fastest of a few calls."""
    best = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return nbytes / best


def drain(source: Source, out: memoryview | None = None) -> None:
    """Read a whole source, in ranges of a chunk, and keep its bytes if they have a place."""
    scratch = Scratch()
    for start, stop in source.layout.ranges(FRAME):
        views = source.views(start, stop, scratch)
        if out is not None:
            out[start:stop] = b"".join(views) if len(views) > 1 else views[0]


def error_of(found: Source, due: Source) -> float:
    """Return the L2 norm of the differences divided by that of the numbers."""
    wrong = total = 0.0
    ours, theirs = Scratch(), Scratch()
    for spec in due.layout.tensors:
        for start in range(spec.start, spec.stop, FRAME):
            stop = min(start + FRAME, spec.stop)
            got, given = (
                load(spec.dtype, source.views(start, stop, scratch)[0]).astype(np.float64)
                for source, scratch in ((found, ours), (due, theirs))
            )
            wrong, total = (
                wrong + float(((got - given) ** 2).sum()),
                total + float((given**2).sum()),
            )
    return float((wrong / total) ** 0.5)


def measure_lossy(codec: LossyCodec, name: str, of: str, source: Source) -> Measured:
    """Measure a codec with a loss."""
    nbytes = source.layout.nbytes
    encoded = codec.encode(source)
    body = memoryview(bytearray(encoded.layout.nbytes))
    encoding = rate(nbytes, lambda: drain(encoded, body))
    decoded = codec.decode(BufferSource(encoded.layout, body), source.layout)
    decoding = rate(nbytes, lambda: drain(decoded))
    share = encoded.layout.nbytes / nbytes
    return Measured(name, of, share, encoding, decoding, error_of(decoded, source))


def measure_feedback(codec: LossyCodec, name: str, source: Source, folder: Path) -> Measured:
    """Measure two rounds of a codec with error feedback, with all of their files."""
    nbytes, before = source.layout.nbytes, None
    began = time.perf_counter()
    for number in range(2):
        after = folder / f"residual-{number}.safetensors"
        sent = encode_with_feedback(
            source, codec, folder / "sent.safetensors", before=before, after=after
        )
        before = FileSource(after)
    encoding = 2 * nbytes / (time.perf_counter() - began)
    decoded = codec.decode(sent, source.layout)
    decoding = rate(nbytes, lambda: drain(decoded))
    share = sent.layout.nbytes / nbytes
    return Measured(f"{name} + feedback", "2nd update", share, encoding, decoding, None)


def measure_exact(codec: FrameCodec, name: str, body: BufferSource, base: BufferSource) -> Measured:
    """Measure exact codecs of frames, and check that they are."""
    layout, scratch = body.layout, Scratch()
    ours, theirs = (each.views(0, layout.nbytes, scratch)[0] for each in (body, base))
    out = memoryview(bytearray(FRAME))
    payloads: list[bytes | None] = []

    def encode() -> None:
        payloads.clear()
        for start, stop in layout.ranges(FRAME):
            place = FramePlace(layout, start, stop)
            payloads.append(codec.encode(ours[start:stop], place, theirs[start:stop]))

    def decode(check: bool = False) -> None:
        for (start, stop), payload in zip(layout.ranges(FRAME), payloads, strict=True):
            if payload is None:
                out[: stop - start] = ours[start:stop]
                continue
            place = FramePlace(layout, start, stop)
            codec.decode(memoryview(payload), out[: stop - start], place, theirs[start:stop])
            if check and out[: stop - start] != ours[start:stop]:
                raise SystemExit(f"{name} is not exact at bytes {start} to {stop}")

    encoding = rate(layout.nbytes, encode)
    decoding = rate(layout.nbytes, decode)
    decode(check=True)
    size = sum(
        stop - start if payload is None else len(payload)
        for (start, stop), payload in zip(layout.ranges(FRAME), payloads, strict=True)
    )
    what = "trained" if any(isinstance(step, Delta) for step in codec.steps) else "model"
    return Measured(name, what, size / layout.nbytes, encoding, decoding, 0.0)


def chain(*listed: Any) -> tuple[CodecChain, str]:
    """Return the codecs of a list, and their names with arguments that were given."""
    codecs = parse_value("streaming.codecs.up", list(listed), Path())
    specs = [each.spec for each in codecs]
    return chain_of(CodecPlan(specs)), ", ".join(map(str, codecs))


def rows(size: int, dtype: str, folder: Path) -> Iterator[Measured]:
    """Measure all codecs."""
    model, update, trained = made(size, dtype)
    body = memoryview(bytearray(model.layout.nbytes))
    drain(model, body)  # its pages are there then
    copied = rate(model.layout.nbytes, lambda: drain(model, body))
    yield Measured("(a copy)", "model", 1.0, copied, copied, 0.0)
    for section in LOSSY:
        codecs, name = chain(section)
        assert codecs.lossy is not None
        if codecs.lossy.coded(model.layout).coded:
            of, source = ("update", update) if codecs.lossy.for_updates else ("model", model)
            yield measure_lossy(codecs.lossy, name, of, source)
            if codecs.lossy.for_updates:
                yield measure_feedback(codecs.lossy, name, update, folder)
    for listed in EXACT:
        codecs, _ = chain(*listed)
        assert codecs.frames is not None
        yield measure_exact(codecs.frames, ", ".join(listed), trained, model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--size", type=int, default=256, help="size of the model (MiB)")
    parser.add_argument("--dtype", choices=("F32", "BF16"), default="F32")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args()
    assert BLOCK_CODECS.keys() == {each["type"] for each in LOSSY}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        found = list(rows(options.size * MIB, options.dtype, Path(folder)))
    head = ("codec", "of", "bytes", "encode", "decode", "L2 error")
    print_columns([head, *(row.cells for row in found)])
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
