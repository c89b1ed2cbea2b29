"""What every source and every sink promises. A new one joins by a line in ``SOURCES``/``SINKS``."""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from support import as_bytes, body_of, every_kind, tensor, write_shards

from flstream.aggregation.ahead import WriteBehind
from flstream.errors import LayoutError
from flstream.model.checkpoint import FileSink, FileSource, unnamed_file, write_checkpoint
from flstream.model.composed import arranged, composed
from flstream.model.copy import copy
from flstream.model.digests import BodyDigest, body_digest
from flstream.model.dtypes import BY_CODE
from flstream.model.formats import open_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody
from flstream.model.source import Scratch, Sink, Source, in_place, views_of
from flstream.streaming.download import RemoteSource
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import StreamSettings
from flstream.transport.channel import pipe

CHUNK = 4096
SETTINGS = StreamSettings(chunk_size=CHUNK)
State = Mapping[str, torch.Tensor]

# Of types that NumPy and files have, since these are among the formats; longer than comes with the
# layout.
STATE: State = {
    **{name: t for name, t in every_kind().items() if BY_CODE[name.split(".")[0]].numpy_name},
    "F32.large": tensor("F32", (150, 200)),
    "F64.deep": tensor("F64", (6, 5, 4)),
    "F64.column": tensor("F64", (9, 1)),
    "I16.odd": tensor("I16", (4099,)),
}
EMPTY: State = {"F32.empty": torch.zeros(0, 3)}


class Place(NamedTuple):
    """Where a test makes files, and what is closed at its end."""

    folder: Path
    stack: ExitStack


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def strided(state: State, _place: Place) -> Source:
    """The same tensors, none of which of two dimensions lies as the body has it."""
    turned = {
        name: value.t().contiguous().t() if value.dim() == 2 else value
        for name, value in state.items()
    }
    return MemoryBody.of(turned)


def buffer(state: State, _place: Place) -> Source:
    body = MemoryBody.of(state)
    return BufferSource(body.layout, memoryview(body_of(body)))


def file(state: State, place: Place) -> Source:
    write_checkpoint(place.folder / "m.safetensors", MemoryBody.of(state), {"of": "a test"})
    return FileSource(place.folder / "m.safetensors")


def npz(state: State, place: Place, save: Callable[..., None] = np.savez) -> Source:
    arrays = {name: np.asarray(value.numpy(), order="F") for name, value in state.items()}
    save(place.folder / "m.npz", **arrays)
    return open_checkpoint(place.folder / "m.npz")


def saved(state: State, place: Place) -> Source:
    turned = {name: value.t() if value.dim() == 2 else value for name, value in state.items()}
    torch.save({name: value.contiguous() for name, value in turned.items()}, place.folder / "t.pt")
    loaded = torch.load(place.folder / "t.pt", mmap=True)
    back = {name: value.t() if value.dim() == 2 else value for name, value in loaded.items()}
    torch.save(back, place.folder / "m.pt")
    return open_checkpoint(place.folder / "m.pt")


def parts(state: State, place: Place) -> Source:
    """Every other tensor of a file, and the others of two bodies in memory."""
    names = sorted(state)
    sources: list[Source] = [
        part({name: state[name] for name in names[number::3]}, place)
        for number, part in enumerate((file, strided, buffer))
    ]
    return composed({spec.name: (each, spec) for each in sources for spec in each.layout.tensors})


def remote(state: State, place: Place) -> Source:
    service = place.stack.enter_context(DownloadService())
    ours, theirs = pipe("server", "site-1")
    place.stack.enter_context(closing(theirs))
    service.attach(ours, "site-1")
    ref = service.offer(MemoryBody.of(state), ["site-1"])
    return RemoteSource(Receiver(theirs, "server"), ref.token, SETTINGS)


SOURCES: dict[str, Callable[[State, Place], Source]] = {
    "memory": lambda state, _: MemoryBody.of(state),
    "strided memory": strided,
    "buffer": buffer,
    "file": file,
    "shards": lambda state, place: open_checkpoint(write_shards(place.folder, state)),
    "Fortran npz": npz,
    "compressed npz": partial(npz, save=np.savez_compressed),
    "torch": saved,
    "composed": parts,
    "remote": remote,
}

Written = Callable[[], bytes]
"""Finishes a sink, and gives the bytes that it took."""


def existing(layout: Layout, _place: Place) -> tuple[Sink, Written]:
    body = MemoryBody.allocate(layout)
    return body, lambda: body_of(body)


def new_file(layout: Layout, place: Place, **how: object) -> tuple[Sink, Written]:
    sink = FileSink(place.folder / "out.safetensors", layout, **how)  # type: ignore[arg-type]
    place.stack.enter_context(sink)
    return sink, lambda: body_of(sink.finish()) if layout.nbytes else b""


def bare(layout: Layout, place: Place) -> tuple[Sink, Written]:
    """A file without a header, where a longer one was."""
    (place.folder / "out.safetensors.tmp").write_bytes(bytes(layout.nbytes + 9))
    _, finish = sink = new_file(layout, place, bare=True)

    def read() -> bytes:
        assert finish() == (place.folder / "out.safetensors").read_bytes()
        return (place.folder / "out.safetensors").read_bytes()

    return sink[0], read if layout.nbytes else finish


def resumed(layout: Layout, place: Place) -> tuple[Sink, Written]:
    """A file of which an earlier attempt wrote the first chunk, and wrongly the second."""
    with FileSink(place.folder / "out.safetensors", layout, resume=True) as first:
        first.write(0, memoryview(b"\5" * min(2 * CHUNK, layout.nbytes)))
    return new_file(layout, place, resume=True)


def written_behind(layout: Layout, place: Place) -> tuple[Sink, Written]:
    file, finish = new_file(layout, place)
    sink = WriteBehind(layout, file.write)  # type: ignore[attr-defined]

    def close() -> bytes:
        sink.close()
        return finish()

    return sink, close


def unnamed(layout: Layout, place: Place) -> tuple[Sink, Written]:
    file = unnamed_file(layout, place.folder / "sites")
    assert os.listdir(place.folder / "sites") == []
    return file, lambda: body_of(file) if layout.nbytes else b""


SINKS: dict[str, Callable[[Layout, Place], tuple[Sink, Written]]] = {
    "memory": existing,
    "file": new_file,
    "volatile file": lambda layout, place: new_file(layout, place, durable=False),
    "bare file": bare,
    "resumed file": resumed,
    "written behind": written_behind,
    "unnamed file": unnamed,
}


def due(layout: Layout, state: State) -> bytes:
    """The bytes that a body of this layout has, taken from the tensors themselves."""
    return b"".join(as_bytes(state[spec.name]) for spec in layout.tensors)


def ranges_of(layout: Layout) -> list[tuple[int, int]]:
    """The first byte, the last, all of them, the bytes around each tensor's bounds, and others."""
    size, pairs = layout.nbytes, random.Random(3)
    found = [(0, 1), (size - 1, size), (0, size)]
    for spec in layout.tensors:
        found += [(spec.start, min(spec.start + 1, size)), (max(spec.start - 1, 0), spec.stop)]
    for _ in range(40):
        start, stop = sorted(pairs.sample(range(size + 1), 2))
        found.append((start, stop))
    return [(start, stop) for start, stop in found if start < stop]


def partition(nbytes: int, seed: int) -> list[tuple[int, int]]:
    """Ranges that cover a body, from front to back, cut anywhere."""
    cuts = sorted({0, nbytes, *random.Random(seed).sample(range(1, nbytes), 30)})
    return list(pairwise(cuts))


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, place: Place) -> Source:
    return SOURCES[request.param](STATE, place)


class TestSources:
    def test_any_range_is_read_again_and_again_and_shown_in_place_as_it_is_read(self, source):
        codes = {name: (name.split(".")[0], tuple(value.shape)) for name, value in STATE.items()}
        assert {spec.name: (spec.dtype, spec.shape) for spec in source.layout.tensors} == codes
        whole, scratch = due(source.layout, STATE), Scratch()
        for start, stop in ranges_of(source.layout):
            views = in_place(source, start, stop)
            assert views is None or b"".join(views) == whole[start:stop]
        if isinstance(source, RemoteSource):  # is read once
            with pytest.raises(ValueError, match="goes on at byte 0"):
                views_of(source, CHUNK, 2 * CHUNK, Scratch())
            return
        for start, stop in ranges_of(source.layout) * 2:
            assert b"".join(views_of(source, start, stop, scratch)) == whole[start:stop]

    @pytest.mark.parametrize("name", SOURCES)
    def test_a_body_without_a_byte_is_copied_too(self, name, place):
        source = SOURCES[name](EMPTY, place)
        sink = MemoryBody.allocate(source.layout)
        copy(source, sink)
        assert [spec.name for spec in source.layout.tensors] == ["F32.empty"]
        assert source.layout.nbytes == 0


BODY = MemoryBody.of(STATE)
WHOLE = due(BODY.layout, STATE)


@pytest.mark.parametrize("name", SINKS)
class TestSinks:
    def test_ranges_come_in_any_order(self, name, place):
        sink, written = SINKS[name](BODY.layout, place)
        ranges = partition(len(WHOLE), 1)
        random.Random(2).shuffle(ranges)
        for start, stop in ranges:
            left = memoryview(WHOLE)[start:stop]
            for view in sink.views(start, stop):
                view[:] = left[: len(view)]
                left = left[len(view) :]
            assert not left
            sink.commit(start, stop)
        assert written() == WHOLE

    def test_a_body_without_a_byte(self, name, place):
        sink, written = SINKS[name](MemoryBody.of(EMPTY).layout, place)
        copy(MemoryBody.of(EMPTY), sink)
        assert written() == b""

    def test_another_layout_is_refused_by_the_tensor_that_differs(self, name, place):
        sink, _ = SINKS[name](BODY.layout, place)
        if name == "resumed file":  # what an earlier attempt left is there to be verified
            there = bytearray(3 * CHUNK)
            sink.read(0, len(there), memoryview(there))
            assert there == b"\5" * 2 * CHUNK + bytes(CHUNK)
        other = MemoryBody.of({**STATE, "I16.odd": tensor("I16", (4, 1))})
        with pytest.raises(LayoutError, match=r"what site-3 offers does not fit .* 'I16\.odd'"):
            copy(other, sink, origin="site-3")


@pytest.mark.parametrize("name", SINKS)
def test_any_source_is_copied_into_any_sink_with_the_digest_of_the_bytes(source, name, place):
    sink, written = SINKS[name](source.layout, place)
    digest, whole = BodyDigest(source.layout), due(source.layout, STATE)
    copy(source, sink, step=10_000, digest=digest)
    assert digest.hexdigest() == body_digest(BufferSource(source.layout, memoryview(whole)))
    assert written() == whole


def test_in_what_is_arranged_the_first_of_tied_names_stands_for_the_tensor():
    tensors = [("w", "F32", (3,)), ("b", "U8", (5,)), ("none", "F16", (0,))]
    ties = {"a": "w", "x": "w", "ones": "none"}
    specs, offset = [], 0
    for spec in reversed(Layout.of(tensors, ties).tensors):  # any other order
        specs.append(spec._replace(start=offset, stop=offset + spec.nbytes))
        offset += spec.nbytes
    given = BufferSource(Layout(specs, ties), memoryview(random.Random(4).randbytes(offset)))
    source = arranged(given)
    assert source.layout.is_canonical
    assert source.layout.aliases == {"w": "a", "x": "a"}
    assert [spec.name for spec in source.layout.tensors] == ["a", "none", "ones", "b"]
    whole = body_of(source)
    for name, origin in (("a", "w"), ("b", "b")):
        ours, theirs = source.layout.by_name[name], given.layout.by_name[origin]
        assert whole[ours.start : ours.stop] == body_of(given)[theirs.start : theirs.stop]
