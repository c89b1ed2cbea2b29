"""The layout of a model: which tensor lies where in one run of bytes.

A layout is what a safetensors header says, and the bytes it describes, the *body*, are what
follows that header in a file. Everything else in flstream reads, moves and writes ranges of it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import xxhash

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE

ALIGNMENT = 16
"""Chunks begin at multiples of this many bytes, so that no element straddles two of them."""

# The body begins at a multiple of 64 bytes of the file: a mapped tensor is then aligned for SIMD.
_BODY_ALIGNMENT = 64
# The safetensors library refuses longer headers, and so do we, before allocating anything.
MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"


class TensorSpec(NamedTuple):
    """One tensor of a layout.

    Attributes:
        name: the key in the state dict.
        dtype: safetensors code, such as ``F32``.
        shape: dimensions; ``()`` for a scalar.
        start: offset of its first byte in the body.
        stop: offset after its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes the tensor takes in the body."""
        return self.stop - self.start

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return math.prod(self.shape)


class Run(NamedTuple):
    """A range of the body whose elements all have one type."""

    dtype: str
    start: int
    stop: int


class Layout:
    """Ordered tensors that fill one body without a hole.

    Attributes:
        tensors: the tensors, in the order of their bytes.
        nbytes: length of the body in bytes.
    """

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        self.tensors = tuple(tensors)
        self.nbytes = self.tensors[-1].stop if self.tensors else 0

    @classmethod
    def of(cls, entries: Iterable[tuple[str, str, tuple[int, ...]]]) -> Layout:
        """Lay out tensors given as (name, dtype code, shape).

        The order is by falling item size, then by name. So the layout follows from the set of
        tensors alone, whatever order a state dict lists them in, and every element begins at a
        multiple of its own size. The safetensors library orders by dtype, then by name, which is
        the same unless dtypes of one size mix.

        Raises:
            LayoutError: two tensors have the same name, or one has a name the format keeps.
        """
        ordered = sorted(entries, key=lambda entry: (-BY_CODE[entry[1]].itemsize, entry[0]))
        specs, offset = [], 0
        for name, dtype, shape in ordered:
            stop = offset + math.prod(shape) * BY_CODE[dtype].itemsize
            specs.append(TensorSpec(name, dtype, tuple(shape), offset, stop))
            offset = stop
        names = {spec.name for spec in specs}
        if len(names) != len(specs):
            raise LayoutError("two tensors have the same name; rename one of them")
        if _METADATA in names:
            raise LayoutError(f"a tensor is named {_METADATA!r}, which the format keeps; rename it")
        return cls(specs)

    @cached_property
    def by_name(self) -> Mapping[str, TensorSpec]:
        """The tensors by their names."""
        return {spec.name: spec for spec in self.tensors}

    @cached_property
    def is_canonical(self) -> bool:
        """Whether the order is the one :meth:`of` gives, as ranges on chunk bounds require."""
        return self == Layout.of((spec.name, spec.dtype, spec.shape) for spec in self.tensors)

    @cached_property
    def fingerprint(self) -> str:
        """xxh3-128 of names, dtypes, shapes and offsets, as 32 hexadecimal digits."""
        return xxhash.xxh3_128_hexdigest(self.plain_header)

    @cached_property
    def plain_header(self) -> bytes:
        """:meth:`header` without metadata, made once: it is asked for by every receiver."""
        return self.header()

    @cached_property
    def _bounds(self) -> list[int]:
        # Where each non-empty tensor begins. Empty ones hold no byte, so no range meets them.
        return [spec.start for spec in self._filled]

    @cached_property
    def _filled(self) -> list[TensorSpec]:
        return [spec for spec in self.tensors if spec.nbytes]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.tensors == other.tensors

    def __hash__(self) -> int:
        return hash(self.tensors)

    def __repr__(self) -> str:
        return f"Layout({len(self.tensors)} tensors, {self.nbytes} bytes)"

    def overlapping(self, start: int, stop: int) -> Iterator[TensorSpec]:
        """The tensors that have at least one byte in ``[start, stop)``, in order."""
        first = max(bisect_right(self._bounds, start) - 1, 0)
        for index in range(first, len(self._filled)):  # a slice would copy the tail every time
            spec = self._filled[index]
            if spec.start >= stop:
                return
            if spec.stop > start:
                yield spec

    def runs(self, start: int, stop: int) -> list[Run]:
        """Cut ``[start, stop)`` into pieces of one element type each, joining equal neighbours."""
        runs: list[Run] = []
        for spec in self.overlapping(start, stop):
            first, last = max(spec.start, start), min(spec.stop, stop)
            if runs and runs[-1].dtype == spec.dtype:
                runs[-1] = runs[-1]._replace(stop=last)
            else:
                runs.append(Run(spec.dtype, first, last))
        return runs

    def ranges(self, step: int) -> Iterator[tuple[int, int]]:
        """Cut the whole body into ranges of ``step`` bytes; the last one may be shorter."""
        for start in range(0, self.nbytes, step):
            yield start, min(start + step, self.nbytes)

    def name_at(self, offset: int) -> str:
        """The name of the tensor that holds the byte at ``offset``, for messages."""
        return next((spec.name for spec in self.overlapping(offset, offset + 1)), "(none)")

    def difference(self, other: Layout) -> str | None:
        """The first way in which ``other`` differs from this layout, or None if they agree."""
        for spec in self.tensors:
            theirs = other.by_name.get(spec.name)
            if theirs is None:
                return f"tensor {spec.name!r} is missing"
            if theirs.shape != spec.shape:
                return (
                    f"tensor {spec.name!r} has shape {list(theirs.shape)} "
                    f"instead of {list(spec.shape)}"
                )
            if theirs.dtype != spec.dtype:
                return f"tensor {spec.name!r} has dtype {theirs.dtype} instead of {spec.dtype}"
        for spec in other.tensors:
            if spec.name not in self.by_name:
                return f"tensor {spec.name!r} is not part of the model"
        return None if self == other else "the tensors are in another order"

    def header(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """The safetensors header: 8 bytes of length, then JSON padded with spaces."""
        fields: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
        for spec in self.tensors:
            fields[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [spec.start, spec.stop],
            }
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-(8 + len(text)) % _BODY_ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def header_length(prefix: bytes, available: int, origin: str) -> int:
    """Length in bytes of the JSON header that follows an 8-byte ``prefix``.

    Args:
        prefix: the first 8 bytes of a safetensors file or message.
        available: bytes that the file or message has after the prefix.
        origin: what is being read, for messages.

    Raises:
        LayoutError: the prefix is cut short or claims more than there is.
    """
    if len(prefix) < 8:
        raise LayoutError(f"{origin} is shorter than a safetensors header; it may be truncated")
    length = int.from_bytes(prefix, "little")
    if length > min(available, MAX_HEADER_BYTES):
        raise LayoutError(
            f"{origin} claims a header of {length} bytes but has {available}; "
            "it is not a safetensors file, or it is damaged"
        )
    return length


def parse_header(text: bytes, origin: str) -> tuple[Layout, dict[str, str]]:
    """Read the JSON of a safetensors header (without its 8-byte length).

    Args:
        text: the JSON, UTF-8, possibly padded with spaces.
        origin: what is being read, for messages.

    Returns:
        The layout and the header's own metadata.

    Raises:
        LayoutError: the header is not valid, names a tensor twice, or its tensors overlap, leave
            a hole or do not match their shapes; the message names the tensor.
    """
    try:
        fields = json.loads(text.decode(), object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{origin} has a header that cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise LayoutError(f"{origin} has a header that is not a JSON object")
    metadata = fields.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise LayoutError(f"{origin} has metadata that is not a table of strings")
    specs = sorted(
        (_parse_tensor(name, field, origin) for name, field in fields.items()),
        key=lambda spec: (spec.start, spec.stop),
    )
    if specs and specs[0].start != 0:
        raise LayoutError(f"{origin}: tensor {specs[0].name!r} does not begin at offset 0")
    for left, right in pairwise(specs):
        if left.stop != right.start:
            flaw = "overlap" if right.start < left.stop else "leave a hole between them"
            raise LayoutError(f"{origin}: tensors {left.name!r} and {right.name!r} {flaw}")
    return Layout(specs), metadata


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} stands there twice")
    return fields


def _parse_tensor(name: str, field: object, origin: str) -> TensorSpec:
    match field:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]} if all(
            type(number) is int and 0 <= number < 2**63 for number in (*shape, start, stop)
        ):
            pass
        case _:
            raise LayoutError(f"{origin}: tensor {name!r} lacks a proper dtype, shape or offsets")
    try:
        name.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a character: "\\ud800"
        raise LayoutError(f"{origin}: the name {name!r} is not a text of Unicode") from error
    if dtype not in BY_CODE:
        raise LayoutError(f"{origin}: tensor {name!r} has the dtype {dtype!r}, which is unknown")
    spec = TensorSpec(name, dtype, tuple(shape), start, stop)
    if spec.nbytes != spec.elements * BY_CODE[dtype].itemsize:
        raise LayoutError(
            f"{origin}: tensor {name!r} takes {spec.nbytes} bytes, which does not match "
            f"its dtype {dtype} and shape {shape}"
        )
    return spec
