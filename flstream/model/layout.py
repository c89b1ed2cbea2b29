"""Layout of a model: the place of each tensor in one sequence of bytes.

A layout is the content of a safetensors header. The bytes that it describes, the *body*, follow
that header in a file. All other code reads, moves and writes ranges of the body.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import xxhash

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE

ALIGNMENT = 16
"""Divisor in bytes of every chunk's start, so that no element straddles two chunks."""
# The body begins at a multiple of 64 bytes of the file: a mapped tensor is then aligned for SIMD.
_BODY_ALIGNMENT = 64

METADATA = "__metadata__"
"""Key of a header that names no tensor."""
TIED = "flstream.tied"
"""Key of the metadata for tied names, as JSON: {alias: name of the tensor}."""


class TensorInfo(NamedTuple):
    """A tensor of a layout.

    Attributes:
        name: Key in the state dict.
        dtype: Element type as a safetensors code, such as ``F32``.
        shape: Dimensions; ``()`` for a scalar.
        start: Offset in bytes of its first byte in the body.
        stop: Offset in bytes after its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the body."""
        return self.stop - self.start

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)


class TypeRun(NamedTuple):
    """Range of a body whose elements have one type.

    Attributes:
        dtype: Element type as a safetensors code.
        start: Offset in bytes of the first byte.
        stop: Offset in bytes after the last byte.
    """

    dtype: str
    start: int
    stop: int


class Layout:
    """Ordered tensors that fill a body without gaps.

    Attributes:
        tensors: Tensors in the order of their bytes.
        aliases: Names of tensors by their further names, as tied weights have them. An alias has no
        bytes of its own.
        nbytes: Length of the body in bytes.
    """

    def __init__(
        self, tensors: Iterable[TensorInfo], aliases: Mapping[str, str] | None = None
    ) -> None:
        self.tensors = tuple(tensors)
        self.aliases = dict(sorted(aliases.items())) if aliases else {}
        self.nbytes = self.tensors[-1].stop if self.tensors else 0

    @classmethod
    def of(
        cls,
        entries: Iterable[tuple[str, str, tuple[int, ...]]],
        aliases: Mapping[str, str] | None = None,
    ) -> Layout:
        """Lay out tensors given as (name, dtype code, shape), and their aliases.

        The order is by falling item size, then by name. So the layout follows from the set of
        tensors alone, whatever order a state dict lists them in, and every element begins at a
        multiple of its own size. The safetensors library orders by dtype, then by name, which is
        the same unless dtypes of one size mix.

        Args:
            entries: Names, dtype codes and shapes of the tensors, in any order.
            aliases: Names of tensors by their further names.

        Raises:
            LayoutError: Two tensors have the same name, or a name cannot be written into a header.
        """
        entries = list(entries)
        names = [*(entry[0] for entry in entries), *(aliases or ())]
        for name in names:
            check_name(name)
        if len(set(names)) != len(names):
            raise LayoutError("two tensors have the same name; rename one of them")
        ordered = sorted(entries, key=lambda entry: (-BY_CODE[entry[1]].itemsize, entry[0]))
        specs, offset = [], 0
        for name, dtype, shape in ordered:
            stop = offset + math.prod(shape) * BY_CODE[dtype].itemsize
            specs.append(TensorInfo(name, dtype, tuple(shape), offset, stop))
            offset = stop
        return cls(specs, aliases)

    @cached_property
    def by_name(self) -> Mapping[str, TensorInfo]:
        """Tensors by their names; aliases are not among them."""
        return {spec.name: spec for spec in self.tensors}

    @property
    def names(self) -> list[str]:
        """Names of the tensors in their order, and then the aliases."""
        return [*(spec.name for spec in self.tensors), *self.aliases]

    @cached_property
    def all_names(self) -> Mapping[str, list[str]]:
        """All names of each tensor, by its own name, which comes first."""
        names = {spec.name: [spec.name] for spec in self.tensors}
        for alias, name in self.aliases.items():
            names[name].append(alias)
        return names

    def find(self, name: str) -> TensorInfo | None:
        """Return the tensor of a name or alias, under that name; None without one."""
        info = self.by_name.get(self.aliases.get(name, name))
        return None if info is None else info._replace(name=name)

    @cached_property
    def is_canonical(self) -> bool:
        """Whether the order is that of :meth:`of`, which ranges at chunk bounds require."""
        entries = ((spec.name, spec.dtype, spec.shape) for spec in self.tensors)
        first_is_kept = all(name < alias for alias, name in self.aliases.items())
        return first_is_kept and self == Layout.of(entries, self.aliases)

    @cached_property
    def fingerprint(self) -> str:
        """xxh3-128 of names, dtypes, shapes, offsets and aliases: 32 hexadecimal digits."""
        return xxhash.xxh3_128_hexdigest(self.plain_header)

    @cached_property
    def plain_header(self) -> bytes:
        """Header without further metadata, encoded once for all receivers."""
        return self.header()

    @cached_property
    def _filled(self) -> list[TensorInfo]:  # empty tensors are in no range
        return [spec for spec in self.tensors if spec.nbytes]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layout)
            and self.tensors == other.tensors
            and self.aliases == other.aliases
        )

    def __hash__(self) -> int:
        return hash((self.tensors, tuple(self.aliases.items())))

    def __repr__(self) -> str:
        return f"Layout({len(self.tensors)} tensors, {self.nbytes} bytes)"

    def subset(self, names: Container[str], aliases: Container[str] | None = None) -> Layout:
        """Return the layout of some of the tensors, in the same order.

        Args:
            names: Names of the tensors; aliases among them select nothing.
            aliases: Further names that these tensors keep; None for all that they have.
        """
        specs: list[TensorInfo] = []
        for spec in self.tensors:
            if spec.name in names:
                start = specs[-1].stop if specs else 0
                specs.append(spec._replace(start=start, stop=start + spec.nbytes))
        ties = {
            alias: name
            for alias, name in self.aliases.items()
            if name in names and (aliases is None or alias in aliases)
        }
        return Layout(specs, ties)

    def overlapping(self, start: int, stop: int) -> Iterator[TensorInfo]:
        """Yield the tensors with a byte in ``[start, stop)``, in order."""
        first = max(bisect_right(self._filled, start, key=lambda spec: spec.start) - 1, 0)
        for index in range(first, len(self._filled)):  # a slice would copy the tail every time
            spec = self._filled[index]
            if spec.start >= stop:
                return
            if spec.stop > start:
                yield spec

    def runs(self, start: int, stop: int) -> list[TypeRun]:
        """Cut ``[start, stop)`` into the longest pieces of one element type each."""
        runs: list[TypeRun] = []
        for spec in self.overlapping(start, stop):
            first, last = max(spec.start, start), min(spec.stop, stop)
            if runs and runs[-1].dtype == spec.dtype:
                runs[-1] = runs[-1]._replace(stop=last)
            else:
                runs.append(TypeRun(spec.dtype, first, last))
        return runs

    def ranges(self, step: int) -> Iterator[tuple[int, int]]:
        """Cut the whole body into ranges of ``step`` bytes; the last one may be shorter."""
        for start in range(0, self.nbytes, step):
            yield start, min(start + step, self.nbytes)

    def name_at(self, offset: int) -> str:
        """Return the name of the tensor that has the byte at ``offset``, for messages."""
        return next((spec.name for spec in self.overlapping(offset, offset + 1)), "(none)")

    def difference(self, other: Layout) -> str | None:
        """Describe the first way in which ``other`` differs from this layout, if it does."""
        if self == other:
            return None
        for spec in self.tensors:
            theirs = other.by_name.get(spec.name)
            if theirs is None:
                return _absent(spec.name, other)
            if theirs.shape != spec.shape:
                return (
                    f"tensor {spec.name!r} has shape {list(theirs.shape)} "
                    f"instead of {list(spec.shape)}"
                )
            if theirs.dtype != spec.dtype:
                return f"tensor {spec.name!r} has dtype {theirs.dtype} instead of {spec.dtype}"
        for alias, name in self.aliases.items():
            if alias in other.by_name:
                return f"tensor {alias!r} is not tied to {name!r}, as it is in the model"
            if other.aliases.get(alias) != name:
                return _absent(alias, other)
        for named in other.names:
            if named not in self.by_name and named not in self.aliases:
                return f"tensor {named!r} is not part of the model"
        return "the tensors are in another order"

    def header(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """Encode the safetensors header: 8 bytes of length, then padded JSON.

        Args:
            metadata: Strings for ``__metadata__``, under any names but that of the aliases.
        """
        metadata = dict(metadata or {})
        if self.aliases:
            metadata[TIED] = _json(self.aliases)
        fields: dict[str, object] = {METADATA: metadata} if metadata else {}
        for spec in self.tensors:
            fields[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [spec.start, spec.stop],
            }
        text = _json(fields).encode()
        text += b" " * (-(8 + len(text)) % _BODY_ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def check_name(name: object) -> None:
    """Refuse a name of a tensor that a header cannot hold.

    Raises:
        LayoutError: The name is not a string of Unicode, or is reserved; the message has it.
    """
    if not isinstance(name, str):
        raise LayoutError(f"{name!r} cannot name a tensor, since it is no string; rename it")
    if name == METADATA:
        raise LayoutError(f"a tensor is named {name!r}, which the format keeps; rename it")
    try:
        name.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair: "\ud800"
        raise LayoutError(
            f"the name {name!r} is not a text of Unicode, so no header can carry it; rename it"
        ) from error


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _absent(name: str, layout: Layout) -> str:
    """Describe how a layout lacks a tensor: altogether, or by other ties."""
    if name in layout.aliases:
        return f"tensor {name!r} is tied to {layout.aliases[name]!r}, which it is not in the model"
    return f"tensor {name!r} is missing"
