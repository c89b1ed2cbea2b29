"""The tensors of a file as a model has them: in its order, or under its names, ties and dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flstream.errors import CheckpointError, LayoutError
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.formats.file import read_parts
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.source import Source

if TYPE_CHECKING:
    import torch


# Names of a kind that an error lists.
_MOST_NAMED = 5


class Arranged:
    """A source derived from another: the same tensors, as :meth:`Layout.of` orders them.

    Of tied names the first in alphabetical order stands for the tensor. Empty tensors share no
    bytes, so ties between them are dropped.

    Args:
        source: Source with random access.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._origins: dict[str, TensorInfo] = {}
        names = _names(source.layout)
        ties = {}
        for spec in source.layout.tensors:
            first, *others = sorted(names[spec.name])
            self._origins[first] = spec
            if spec.nbytes:
                ties.update(dict.fromkeys(others, first))
            else:
                self._origins.update(dict.fromkeys(others, spec))
        self.layout = Layout.of(
            ((name, spec.dtype, spec.shape) for name, spec in self._origins.items()), ties
        )

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Gather the bytes ``[start, stop)``."""
        read_parts(self.layout, start, stop, into, self._read)

    def _read(self, spec: TensorInfo, view: memoryview, offset: int) -> None:
        start = self._origins[spec.name].start + offset
        self._source.read(start, start + len(view), view)


class Differences(NamedTuple):
    """How a file's tensors differ from a model's.

    Attributes:
        missing: Names of the model that the file lacks.
        extra: Names of the file that the model lacks.
        misshapen: Names that have another shape in the file.
    """

    missing: list[str]
    extra: list[str]
    misshapen: list[str]

    @classmethod
    def between(cls, model: Layout, given: Layout) -> Differences:
        """Compare layouts; a tensor may be in the file under any of the names that it has."""
        names = _names(model)
        missing, misshapen = [], []
        for spec in model.tensors:
            there = _there(given, names[spec.name])
            if not there:
                missing.append(spec.name)
            elif any(each.shape != spec.shape for each in there):
                misshapen.append(spec.name)
        known = {*names, *model.aliases}
        extra = [name for name in given.names if name not in known]
        return cls(missing, extra, misshapen)

    def __bool__(self) -> bool:
        return any(self)

    def sentence(self, origin: str) -> str:
        """Describe them, with the name of the file."""
        kinds = (
            ("lacks {} of the model", self.missing),
            ("has {} that the model lacks", self.extra),
            ("has {} in another shape", self.misshapen),
        )
        clauses = [clause.format(_listed(names)) for clause, names in kinds if names]
        hint = _prefix_hint(self.missing, self.extra)
        return f"{origin} {'; it '.join(clauses)}{hint}"


class Fitted:
    """A source derived from another: the tensors of a model, with values from a file.

    Values are cast to the model's dtypes, range by range.

    Args:
        layout: Layout of the model.
        given: The file's tensors.
        origin: Name of the file, for messages.
        made: The model's own tensors, which are taken where the file has none of that shape; None
            where that is not allowed.
        rounds: Whether a value may change when it is cast.

    Raises:
        LayoutError: The file lacks tensors, or has them in other shapes, and ``made`` is None; the
            message names them.
    """

    def __init__(
        self,
        layout: Layout,
        given: Source,
        origin: str,
        made: Source | None = None,
        *,
        rounds: bool = False,
    ) -> None:
        self.layout = layout
        self._given = given
        self._made = made
        self._origin = origin
        self._rounds = rounds
        differences = Differences.between(layout, given.layout)
        if made is None and differences:
            raise LayoutError(differences.sentence(origin))
        apart = {*differences.missing, *differences.misshapen}
        names = _names(layout)
        # Where each tensor is in the file, once or, under tied names, several times.
        self._places = {
            spec.name: _there(given.layout, names[spec.name])
            for spec in layout.tensors
            if spec.name not in apart
        }

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Gather the bytes ``[start, stop)``.

        Raises:
            CheckpointError: The file cannot be read, a value does not fit the model's dtype, or
                names that are tied in the model have different values in the file.
        """
        read_parts(self.layout, start, stop, into, self._read)

    def _read(self, spec: TensorInfo, view: memoryview, offset: int) -> None:
        places = self._places.get(spec.name)
        if places is None:
            assert self._made is not None
            start = self._made.layout.by_name[spec.name].start + offset
            self._made.read(start, start + len(view), view)
            return
        first, *others = places
        self._read_as(spec, first, view, offset)
        for other in others:
            again = memoryview(bytearray(len(view)))
            self._read_as(spec, other, again, offset)
            if again != view:
                raise CheckpointError(
                    f"{self._origin} has different values for {first.name!r} and {other.name!r}, "
                    "which are tied in the model; untie them there, or save the file again"
                )

    def _read_as(self, spec: TensorInfo, place: TensorInfo, view: memoryview, offset: int) -> None:
        """Fill a view with elements of a tensor of the file, cast to the model's dtype."""
        size, given_size = BY_CODE[spec.dtype].itemsize, BY_CODE[place.dtype].itemsize
        start = place.start + offset // size * given_size
        nbytes = len(view) // size * given_size
        if place.dtype == spec.dtype:
            self._given.read(start, start + nbytes, view)
            return
        import torch

        data = bytearray(nbytes)
        self._given.read(start, start + nbytes, memoryview(data))
        values = torch.frombuffer(data, dtype=torch_dtype(place.dtype))
        cast = values.to(torch_dtype(spec.dtype))
        if not self._rounds and not _is_exact(values, cast):
            raise CheckpointError(
                f"tensor {place.name!r} of {self._origin} is {place.dtype}, with values that the "
                f"model's {spec.dtype} does not have; set model.strict = false to round them, or "
                "build the model in the file's dtype"
            )
        torch.frombuffer(view, dtype=cast.dtype).copy_(cast)


def _names(layout: Layout) -> dict[str, list[str]]:
    """Return all names of each tensor, by its own."""
    names = {spec.name: [spec.name] for spec in layout.tensors}
    for alias, name in layout.aliases.items():
        names[name].append(alias)
    return names


def _there(given: Layout, names: Sequence[str]) -> list[TensorInfo]:
    """Return the tensors of a file that have one of these names, each once."""
    found = {given.aliases.get(name, name) for name in names}
    return [given.by_name[name] for name in sorted(found) if name in given.by_name]


def _is_exact(values: torch.Tensor, cast: torch.Tensor) -> bool:
    """Return whether a cast has changed no value. NaN stays NaN, whatever bits it has."""
    import torch

    again = cast.to(values.dtype)
    if values.is_complex():
        values, again = torch.view_as_real(values), torch.view_as_real(again)
    if values.is_floating_point():
        # Those of eight bits lack operators.
        wide, again = values.double(), again.double()
        return bool(((wide == again) | (wide.isnan() & again.isnan())).all())
    return bool((values == again).all())


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    counted = f"{len(names)} tensors" if len(names) > 1 else "1 tensor"
    return f"{counted} ({shown}{f' and {more} more' if more > 0 else ''})"


def _prefix_hint(missing: Sequence[str], extra: Sequence[str]) -> str:
    """Point out that the names differ by a prefix, as those of a base model and its heads do."""
    for longer, shorter, what in ((missing, set(extra), "lack"), (extra, set(missing), "have")):
        for name in longer:
            for place, char in enumerate(name):
                if char == "." and name[place + 1 :] in shorter:
                    return f"; its names seem to {what} the prefix {name[: place + 1]!r}"
    return ""


class Renamed:
    """A source derived from another: the same bytes in the same order, under other names.

    Args:
        source: Source with random access.
        names: New name of each tensor, by its own. Tied names are left out.
    """

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        self._source = source
        self.layout = Layout(spec._replace(name=names[spec.name]) for spec in source.layout.tensors)

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``, as the other source has them."""
        self._source.read(start, stop, into)
