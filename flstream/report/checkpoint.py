"""Text of ``flstream inspect``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs
from rich.console import Console

from flstream.inspection.examine import Count, Findings
from flstream.inspection.export import Export
from flstream.inspection.numbers import Difference, TensorRow
from flstream.inspection.runs import InspectedRun
from flstream.report.table import Column, Row, Table, ends
from flstream.report.text import GAP, counted, format_metrics, wrapped
from flstream.text import printable
from flstream.units import format_bytes

_DIGEST_WIDTH = 12
_NAME = Column("name", "name", least=16)
_BYTES = Column("bytes", "bytes")
_ABSENT = (Column("failures", "count"), Column("late", "count", 1))
_TENSORS = (_NAME, Column("dtype"), Column("shape"), _BYTES)
_MODELS = (Column("model", "name"), _BYTES, Column("digest"), Column("metrics"))
_MOVED = (Column("down", "bytes"), Column("up", "bytes"), Column("reused", "bytes"))
_ROUNDS = (Column("round", "count"), Column("seconds", "seconds", 2), *_MOVED, *_ABSENT)
_SITES = (Column("site", "name"), Column("updates", "count"), Column("weight", "number"), *_ABSENT)
_STATISTICS = (
    _NAME,
    *(Column(head, "number", 1) for head in ("min", "max", "mean", "std", "norm")),
    *(Column(head, "count", 2) for head in ("zeros", "NaN", "inf")),
)
_RESHAPED = (_NAME, Column("was"), Column("is"))
_CHANGED = (
    _NAME,
    *(Column(head, "number") for head in ("L2", "max")),
    *(Column(head, "bytes") for head in ("bytes", "differ")),
    Column("non-finite", "count", 1),
)
_STATISTICS_NOTE = (
    "Of finite elements; std is the population's; complex min and max are of absolute values."
)


def print_findings(console: Console, findings: Findings) -> None:
    """Print the results of an examination.

    On a terminal long names are shortened to fit its width. Elsewhere they are whole, so that
    programs can search them.
    """
    width = console.width if console.is_terminal else None
    lines = _run_lines(findings.run, width) if findings.run else []
    lines += _tensor_table(findings.tensors).lines(width)
    if findings.tensors and findings.tensors[0].stats:
        statistics = _statistics_table(findings.tensors)
        lines += ["", *statistics.lines(width), *wrapped([_STATISTICS_NOTE], width)]
    lines += _total_lines(findings, width)
    if findings.diff:
        lines += _difference_lines(findings.diff, str(findings.path), width)
    for file in findings.verified or ():
        checks = [printable(check) for check in file.checks]
        lines += _section(f"verified {printable(str(file.path))}", checks, width)
    _print(console, lines)


def print_export(console: Console, export: Export) -> None:
    """Print the place and the files of an exported model."""
    tensors = f"{counted(export.tensors, 'tensor')} of {printable(str(export.path))}"
    lines = [f"exported {tensors}, {format_bytes(export.bytes)} in"]
    lines += [f"  {printable(str(path))}" for path in export.files]
    _print(console, lines)


def print_json(console: Console, document: Mapping[str, Any]) -> None:
    """Print a document as JSON."""
    _print(console, [msgspec.json.format(json.dumps(document, allow_nan=False), indent=2)])


def _print(console: Console, lines: Sequence[str]) -> None:
    """Print lines without rich, which takes a second for a megabyte."""
    console.file.writelines(f"{line}\n" for line in lines)
    console.file.flush()


def _run_lines(run: InspectedRun, width: int | None) -> list[str]:
    planned = f" of {run.rounds_planned}" if run.rounds_planned else ""
    job = printable(run.job) or "a run without a journal"
    status = f" {run.status} after" if run.status else ""
    lines = wrapped([f"{job}:{status} {run.rounds_completed}{planned} rounds"], width)
    models = (
        Row(
            [
                str(model.round) if model.step is None else f"{model.round}.{model.step}",
                model.bytes,
                model.digest if width is None else model.digest[:_DIGEST_WIDTH],
                format_metrics(model.metrics),
            ]
        )
        for model in run.checkpoints
    )
    rounds = (Row(list(sums.values())) for sums in run.rounds)
    sites = (Row(list(sums.values())) for sums in run.sites)
    for columns, rows in ((_MODELS, models), (_ROUNDS, rounds), (_SITES, sites)):
        table = Table(columns, ends(rows))
        lines += ["", *table.lines(width)] if table.rows else []
    return [*lines, "", f"the {'final model' if run.final_model else 'latest checkpoint'}:", ""]


def _tensor_table(tensors: Sequence[TensorRow]) -> Table:
    rows = [Row([row.name, row.dtype, str(list(row.shape)), row.bytes]) for row in tensors]
    return Table(_TENSORS, rows)


def _statistics_table(tensors: Sequence[TensorRow]) -> Table:
    rows = []
    for tensor in tensors:
        assert tensor.stats
        _, non_finite, nan, zeros, *numbers = structs.astuple(tensor.stats)
        rows.append(Row([tensor.name, *map(_rounded, numbers), zeros, nan, non_finite - nan]))
    return Table(_STATISTICS, rows)


def _total_lines(findings: Findings, width: int | None) -> list[str]:
    lines, cost = [""], findings.streaming
    lines.append(f"{_counted(findings.total)}, header of {format_bytes(findings.header_bytes)}")
    if len(findings.dtypes) > 1:
        lines += [f"  {code}: {_counted(count)}" for code, count in findings.dtypes.items()]
    files, size = counted(len(findings.files), "file"), format_bytes(findings.file_bytes)
    layout = "a run needs it as one .safetensors file, and lays it out anew"
    chunks = f"{counted(cost.chunks, 'chunk')} of {format_bytes(cost.chunk_size)}"
    streaming = [chunks, "streams as it lies" if cost.as_it_lies else layout]
    ties = [f"{printable(alias)} = {printable(name)}" for alias, name in findings.tied.items()]
    pairs = [f"{printable(key)}: {printable(text)}" for key, text in findings.metadata.items()]
    return [
        *wrapped([*lines, f"{findings.format}, {files}, {size}"], width),
        *_section("streaming", streaming, width),
        *_section("tied", ties, width),
        *_section("metadata", pairs, width),
    ]


def _difference_lines(difference: Difference, path: str, width: int | None) -> list[str]:
    reshaped = []
    for row in difference.reshaped:
        name, dtype, shape, other_dtype, other_shape = structs.astuple(row)
        reshaped.append(Row([name, f"{dtype} {[*shape]}", f"{other_dtype} {[*other_shape]}"]))
    changed = []
    for tensor in difference.changed:
        name, size, equal, *numbers, non_finite = structs.astuple(tensor)
        changed.append(Row([name, *map(_rounded, numbers), size, size - equal, non_finite]))
    tables = {
        "added": _tensor_table(difference.added),
        "removed": _tensor_table(difference.removed),
        "reshaped": Table(_RESHAPED, reshaped),
        "changed": Table(_CHANGED, changed),
    }
    room = None if width is None else width - len(GAP)
    lines = wrapped(["", f"from {printable(path)}", f"to   {printable(difference.other)}"], width)
    for head, table in tables.items():
        lines += _section(head, table.lines(room) if table.rows else [], width)
    counts = ", ".join(f"{len(table.rows):,} {kind}" for kind, table in tables.items())
    differing = format_bytes(difference.compared_bytes - difference.equal_bytes)
    compared = (
        f"of {counted(difference.compared, 'tensor')} of both, {differing} of "
        f"{format_bytes(difference.compared_bytes)} differ, L2 {difference.l2:.4g}"
    )
    return [*lines, "", *wrapped([counts, compared], width)]


def _counted(count: Count) -> str:
    numbers = f"{counted(count.tensors, 'tensor')}, {counted(count.parameters, 'parameter')}"
    return f"{numbers}, {format_bytes(count.bytes)}"


def _rounded(value: complex | None) -> complex | None:
    """Round a float to three digits; an integer stays exact."""
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _section(head: str, lines: Sequence[str], width: int | None) -> list[str]:
    """Indent lines below a heading and wrap them; return nothing without lines."""
    if not lines:
        return []
    room = None if width is None else width - len(GAP)
    indented = (f"{GAP}{line}".rstrip() for line in wrapped(lines, room))
    return ["", *wrapped([head], width), *indented]
