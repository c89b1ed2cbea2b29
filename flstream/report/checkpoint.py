"""Text of ``flstream inspect``: a checkpoint's tensors, totals and streaming cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from flstream.inspection.examine import Findings
from flstream.inspection.export import Export
from flstream.inspection.overview import Count, Inspection, StreamingCost
from flstream.inspection.tree import Module
from flstream.model.formats.file import CheckpointFile
from flstream.report.checkpoint_findings import (
    difference_lines,
    run_lines,
    statistics_lines,
    verification_lines,
)
from flstream.report.columns import GAP, column_lines, section, wrapped
from flstream.report.text import counted
from flstream.text import printable
from flstream.units import format_bytes

# Width of a shape on a terminal, in columns, from which on it is folded.
_SHAPE_WIDTH = 26
# Lines, or pieces of JSON of a few characters each, that are printed at a time.
_BATCH = 4096


def print_findings(console: Console, findings: Findings) -> None:
    """Print the results of an examination.

    On a terminal names and shapes are folded to fit its width. Elsewhere they are whole, so that
    programs can search them.
    """
    width = console.width if console.is_terminal else None
    inspection = findings.inspection
    lines = run_lines(findings.run, width)
    if findings.tree is not None:
        lines += _tree_lines(findings.tree, width)
    else:
        lines += _tensor_lines(inspection, width)
    if findings.statistics is not None:
        lines += ["", *statistics_lines(inspection.tensors, findings.statistics, width)]
    lines += _total_lines(inspection, width)
    if findings.difference is not None:
        lines += difference_lines(findings.difference, str(inspection.file.path), width)
    if findings.verified is not None:
        lines += verification_lines(findings.verified, width)
    while lines and not lines[0]:
        del lines[0]
    _print(console, lines)


def print_export(console: Console, export: Export) -> None:
    """Print where a model was written, and which files."""
    tensors = f"{counted(export.tensors, 'tensor')} of {printable(str(export.source))}"
    lines = [f"exported {tensors}, {format_bytes(export.bytes)} in"]
    lines += [f"  {printable(str(path))}" for path in export.files]
    console.out("\n".join(lines), highlight=False)


def _print(console: Console, lines: Sequence[str]) -> None:
    for start in range(0, len(lines), _BATCH):
        console.out("\n".join(lines[start : start + _BATCH]), highlight=False)


def print_json(console: Console, document: Mapping[str, Any]) -> None:
    """Print a document as JSON, in pieces, since its whole text may need much memory."""
    encoder = json.JSONEncoder(indent=2, allow_nan=False)
    pieces = encoder.iterencode(document)
    while batch := "".join(islice(pieces, _BATCH)):
        console.out(batch, highlight=False, end="")
    console.out("", highlight=False)


def _tensor_lines(inspection: Inspection, width: int | None) -> list[str]:
    rows = [
        (printable(spec.name), spec.dtype, str(list(spec.shape)), format_bytes(spec.nbytes))
        for spec in inspection.tensors
    ]
    head = ("name", "dtype", "shape", "bytes")
    return column_lines(head, rows, width, left=3, limits={2: _SHAPE_WIDTH})


def _tree_lines(root: Module, width: int | None) -> list[str]:
    """Return a line for each module and each tensor, indented below its parent module."""
    rows: list[tuple[str, ...]] = []

    def add(module: Module, depth: int) -> None:
        for label, spec in module.tensors:
            what = f"{spec.dtype} {list(spec.shape)}"
            rows.append(_row(label, depth, what, Count.of([spec])))

    add(root, 0)
    for depth, module in root.walk():
        what = counted(module.total.tensors, "tensor")
        rows.append(_row(f"{module.label}.", depth, what, module.total))
        add(module, depth + 1)
    head = ("module", "holds", "parameters", "bytes")
    return column_lines(head, rows, width, left=2, limits={1: _SHAPE_WIDTH})


def _row(label: str, depth: int, what: str, count: Count) -> tuple[str, ...]:
    # Indentation ends at a dozen levels, since a terminal has no room for more.
    name = GAP * min(depth, 12) + printable(label)
    return name, what, f"{count.parameters:,}", format_bytes(count.bytes)


def _total_lines(inspection: Inspection, width: int | None) -> list[str]:
    file = inspection.file
    lines = [""]
    if inspection.shown != inspection.total:
        lines.append(f"shown: {_counted(inspection.shown)}; the whole model has:")
    lines.append(f"{_counted(inspection.total)}, header of {format_bytes(file.header_bytes)}")
    if len(inspection.dtypes) > 1:
        lines += [f"  {code}: {_counted(count)}" for code, count in inspection.dtypes.items()]
    lines.append(
        f"{file.format}, {counted(len(file.files), 'file')}, {format_bytes(file.file_bytes)}"
    )
    lines = wrapped(lines, width)
    lines += section("streaming", _streaming_lines(inspection.streaming, file), width)
    ties = inspection.ties.items()
    lines += section(
        "tied", [f"{printable(alias)} = {printable(name)}" for alias, name in ties], width
    )
    pairs = file.metadata.items()
    return lines + section(
        "metadata", [f"{printable(key)}: {printable(value)}" for key, value in pairs], width
    )


def _streaming_lines(streaming: StreamingCost, file: CheckpointFile) -> list[str]:
    layout = "streams as it lies"
    if file.format != "safetensors":
        layout = "a run can start from it once it is saved as one .safetensors file"
    elif not streaming.as_it_lies:
        layout = "laid out anew when a run starts from it"
    chunk, request = format_bytes(streaming.chunk_size), format_bytes(streaming.request_size)
    calls = counted(streaming.per_tensor_calls, "call")
    rows = {
        f"chunks of {chunk}": f"{streaming.chunks:,}; the largest tensor has bytes in "
        f"{streaming.largest_tensor_chunks:,}",
        f"requests of {request}": f"{streaming.requests:,}; tensor by tensor it would be {calls}",
        "layout": layout,
    }
    first = max(map(cell_len, rows))
    return [f"{name.ljust(first)}{GAP}{value}" for name, value in rows.items()]


def _counted(count: Count) -> str:
    numbers = f"{counted(count.tensors, 'tensor')}, {counted(count.parameters, 'parameter')}"
    return f"{numbers}, {format_bytes(count.bytes)}"
