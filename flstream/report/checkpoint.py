"""What is in a checkpoint: its tensors and its totals, from the header alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console

from flstream.model.checkpoint import read_layout
from flstream.model.header import TensorSpec
from flstream.model.layout import Layout
from flstream.report.text import counted, elide, pad, printable
from flstream.units import format_bytes

_GAP = "  "
# Columns that a shape may take on a terminal before its middle is left out.
_SHAPE_WIDTH = 26


class Count(NamedTuple):
    """How much there is of something."""

    tensors: int
    parameters: int
    bytes: int

    @classmethod
    def of(cls, specs: Iterable[TensorSpec]) -> Count:
        """Count some tensors."""
        specs = list(specs)
        parameters = sum(spec.elements for spec in specs)
        return cls(len(specs), parameters, sum(spec.nbytes for spec in specs))


class Inspection(NamedTuple):
    """What the header of a checkpoint says.

    Attributes:
        header_bytes: where the tensors begin in the file: its 8 bytes of length and its JSON.
        dtypes: what there is of each type, the largest share first.
    """

    path: Path
    layout: Layout
    metadata: Mapping[str, str]
    header_bytes: int
    total: Count
    dtypes: Mapping[str, Count]

    def document(self) -> dict[str, Any]:
        """The same for JSON; ``start`` and ``stop`` count from the end of the header."""
        return {
            "path": str(self.path),
            "format": "safetensors",
            "tensors": [
                {
                    "name": spec.name,
                    "dtype": spec.dtype,
                    "shape": list(spec.shape),
                    "bytes": spec.nbytes,
                    "start": spec.start,
                    "stop": spec.stop,
                }
                for spec in self.layout.tensors
            ],
            "total": self.total._asdict(),
            "dtypes": {code: count._asdict() for code, count in self.dtypes.items()},
            "tied": dict(self.layout.aliases),
            "header_bytes": self.header_bytes,
            "metadata": dict(self.metadata),
        }


def inspect_checkpoint(path: Path) -> Inspection:
    """Read what a checkpoint's header says.

    Raises:
        CheckpointError: the file cannot be read or is not a sound safetensors file.
    """
    layout, metadata, header_bytes = read_layout(path)
    by_dtype: dict[str, list[TensorSpec]] = {}
    for spec in layout.tensors:
        by_dtype.setdefault(spec.dtype, []).append(spec)
    counts = {code: Count.of(specs) for code, specs in by_dtype.items()}
    dtypes = dict(sorted(counts.items(), key=lambda item: -item[1].bytes))
    return Inspection(path, layout, metadata, header_bytes, Count.of(layout.tensors), dtypes)


def print_inspection(console: Console, inspection: Inspection) -> None:
    """Print the tensors, the totals, the ties and the metadata.

    On a terminal names and shapes are cut in the middle to fit its width. Elsewhere they are
    whole: a program that searches them must find them.
    """
    width = console.width if console.is_terminal else None
    lines = _tensor_lines(inspection.layout.tensors, width)
    header = f"header of {format_bytes(inspection.header_bytes)}"
    lines += ["", f"{_counted(inspection.total)}, {header}"]
    if len(inspection.dtypes) > 1:
        lines += [f"  {code}: {_counted(count)}" for code, count in inspection.dtypes.items()]
    ties = inspection.layout.aliases.items()
    lines += _section(
        "tied", [f"{printable(alias)} = {printable(name)}" for alias, name in ties], width
    )
    pairs = inspection.metadata.items()
    lines += _section(
        "metadata", [f"{printable(key)}: {printable(value)}" for key, value in pairs], width
    )
    console.out("\n".join(lines), highlight=False)


def _tensor_lines(tensors: Sequence[TensorSpec], width: int | None) -> list[str]:
    """A line a tensor, under the heads of the columns.

    The columns are set here and not by a rich table, which measures every cell several times
    over: a checkpoint may have a hundred thousand tensors.
    """
    rows = [
        (printable(spec.name), spec.dtype, str(list(spec.shape)), format_bytes(spec.nbytes))
        for spec in tensors
    ]
    table = [("name", "dtype", "shape", "bytes"), *rows]
    name, dtype, shape, size = (max(map(cell_len, column)) for column in zip(*table, strict=True))
    if width is not None:
        shape = min(shape, _SHAPE_WIDTH)
        name = min(name, max(width - dtype - shape - size - 3 * len(_GAP), len("name")))
    return [
        _GAP.join((pad(row[0], name), pad(row[1], dtype), pad(row[2], shape), row[3].rjust(size)))
        for row in table
    ]


def _section(head: str, entries: Sequence[str], width: int | None) -> list[str]:
    """Lines under a head, or none if there is nothing to say."""
    lines = [_GAP + entry for entry in entries]
    if width is not None:
        lines = [elide(line, width) for line in lines]
    return ["", head, *lines] if lines else []


def _counted(count: Count) -> str:
    numbers = f"{counted(count.tensors, 'tensor')}, {counted(count.parameters, 'parameter')}"
    return f"{numbers}, {format_bytes(count.bytes)}"
