"""Tensors of a file as a model has them: its names, ties and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from flstream.errors import CheckpointError
from flstream.model.composed import ComposedSource, Place, composed
from flstream.model.digests import body_digest
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.layout import Layout, TensorInfo
from flstream.model.source import Source
from flstream.text import brief_names

if TYPE_CHECKING:
    import torch


# Names of a kind that an error lists.
_MOST_NAMED = 5


class Differences(NamedTuple):
    """Differences between a file's tensors and a model's.

    Attributes:
        missing: Names of the model that the file lacks.
        extra: Names of the file that the model lacks.
        misshapen: Names that have another shape in the file.
    """

    missing: list[str]
    extra: list[str]
    misshapen: list[str]

    @classmethod
    def between(cls, model: Layout, file: Layout) -> Differences:
        """Compare layouts; a file's tensor may have any of its names in the model."""
        missing, misshapen = [], []
        for spec in model.tensors:
            matches = _named(file, model.all_names[spec.name])
            if not matches:
                missing.append(spec.name)
            elif any(info.shape != spec.shape for info in matches):
                misshapen.append(spec.name)
        known = set(model.names)
        return cls(missing, [name for name in file.names if name not in known], misshapen)

    def __bool__(self) -> bool:
        return any(self)

    def sentence(self, origin: str) -> str:
        """Describe the differences, with the name of the file."""
        kinds = (
            ("lacks {} of the model", self.missing),
            ("has {} that the model lacks", self.extra),
            ("has {} in another shape", self.misshapen),
        )
        clauses = [clause.format(_listed(names)) for clause, names in kinds if names]
        hint = _prefix_hint(self.missing, self.extra)
        return f"{origin} {'; it '.join(clauses)}{hint}"


def fitted(layout: Layout, file: Source, origin: str, own: Source | None = None) -> ComposedSource:
    """Compose a model's tensors from the values of a file.

    Values are cast to the model's dtypes as they are read.

    Args:
        layout: Layout of the model.
        file: The file's tensors.
        origin: Name of the file, for messages.
        own: The model's own tensors, which are taken where the file has none of that shape; values
            may change then when they are cast. None where the layouts have no
            :class:`Differences`; reading a value that a cast changes is a
            :class:`CheckpointError`.

    Raises:
        CheckpointError: Names that are tied in the model have different values in the file.
    """
    differences = Differences.between(layout, file.layout)
    apart = {*differences.missing, *differences.misshapen}
    rounds = own is not None
    places: dict[str, Place] = {}
    for spec in layout.tensors:
        if own is not None and spec.name in apart:
            places[spec.name] = own, own.layout.by_name[spec.name]
            continue
        first, *others = _named(file.layout, layout.all_names[spec.name])
        places[spec.name] = _cast(spec, (file, first), origin, rounds=rounds)
        for other in others:
            both = places[spec.name], _cast(spec, (file, other), origin, rounds=rounds)
            if len({body_digest(composed({spec.name: place})) for place in both}) > 1:
                raise CheckpointError(
                    f"{origin} has different values for {first.name!r} and {other.name!r}, "
                    "which are tied in the model; untie them there, or save the file again"
                )
    return ComposedSource(layout, places)


def _named(file: Layout, names: Sequence[str]) -> list[TensorInfo]:
    """Return a file's tensors that have one of these names, each once."""
    own_names = {file.aliases.get(name, name) for name in names}
    return [file.by_name[name] for name in sorted(own_names) if name in file.by_name]


def _cast(spec: TensorInfo, place: Place, origin: str, *, rounds: bool) -> Place:
    if place[1].dtype == spec.dtype:
        return place
    source = _CastTensor(spec, place, origin, rounds=rounds)
    return source, source.layout.tensors[0]


class _CastTensor:
    """Source of a single tensor: another source's tensor in another dtype."""

    def __init__(self, spec: TensorInfo, place: Place, origin: str, *, rounds: bool) -> None:
        self.layout = Layout.of([(spec.name, spec.dtype, spec.shape)])
        self._source, self._info = place
        self._origin, self._rounds = origin, rounds
        self._dtype = spec.dtype

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read whole elements, and cast them."""
        import torch

        size, size_in_file = BY_CODE[self._dtype].itemsize, BY_CODE[self._info.dtype].itemsize
        first, last = start // size * size_in_file, stop // size * size_in_file
        data = memoryview(bytearray(last - first))
        self._source.read(self._info.start + first, self._info.start + last, data)
        values = torch.frombuffer(data, dtype=torch_dtype(self._info.dtype))
        cast = values.to(torch_dtype(self._dtype))
        if not self._rounds and not _is_exact(values, cast):
            raise CheckpointError(
                f"tensor {self._info.name!r} of {self._origin} is {self._info.dtype}, with values "
                f"that the model's {self._dtype} does not have; set model.strict = false to round "
                "them, or build the model in the file's dtype"
            )
        torch.frombuffer(into, dtype=cast.dtype).copy_(cast)


def _is_exact(values: torch.Tensor, cast: torch.Tensor) -> bool:
    """Return whether a cast has changed no value. NaN stays NaN, whatever bits it has."""
    import torch

    again = cast.to(values.dtype)
    if values.is_complex():
        values, again = torch.view_as_real(values), torch.view_as_real(again)
    if not values.is_floating_point():
        return torch.equal(values, again)
    # As float64, since those of eight bits lack operators.
    return torch.allclose(values.double(), again.double(), rtol=0, atol=0, equal_nan=True)


def _listed(names: Sequence[str]) -> str:
    counted = f"{len(names)} tensors" if len(names) > 1 else "1 tensor"
    return f"{counted} ({brief_names([*map(repr, names)], _MOST_NAMED)})"


def _prefix_hint(missing: Sequence[str], extra: Sequence[str]) -> str:
    """Explain that names differ by a prefix, as a base model's and its heads' do."""
    for longer, shorter, what in ((missing, set(extra), "lack"), (extra, set(missing), "have")):
        for name in longer:
            for place, char in enumerate(name):
                if char == "." and name[place + 1 :] in shorter:
                    return f"; its names seem to {what} the prefix {name[: place + 1]!r}"
    return ""
