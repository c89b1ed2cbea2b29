"""Text of ``flstream inspect``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rich.console import Console

from flstream.inspection.contents import Count, TensorRow
from flstream.inspection.difference import Difference
from flstream.inspection.examine import Findings
from flstream.inspection.export import Export
from flstream.inspection.runs import InspectedRun
from flstream.report.columns import GAP, column_lines, section, shortened, wrapped
from flstream.report.text import counted, format_metrics
from flstream.text import printable
from flstream.units import format_bytes

# Width of a shape on a terminal, in columns, from which on it is folded.
_SHAPE_WIDTH = 26
_DIGEST_WIDTH = 12
# Integers of more digits are rounded like floats.
_MOST_DIGITS = 9
# Lines, or pieces of JSON of a few characters each, that are printed at a time.
_BATCH = 4096


def print_findings(console: Console, findings: Findings) -> None:
    """Print the results of an examination.

    On a terminal names and shapes are folded to fit its width. Elsewhere they are whole, so that
    programs can search them.
    """
    width = console.width if console.is_terminal else None
    tensors, run, modules = findings.tensors, findings.run, findings.modules
    lines = _run_lines(run, width) if run else []
    if modules:
        lines += [*_module_lines(modules, width), ""]
    lines += _tensor_lines(tensors, width)
    if tensors and tensors[0].stats:
        lines += ["", *_statistics_lines(tensors, width)]
    lines += _total_lines(findings, width)
    if findings.diff:
        lines += _difference_lines(findings.diff, str(findings.path), width)
    for file in findings.verified or ():
        checks = [printable(check) for check in file.checks]
        lines += section(f"verified {printable(str(file.path))}", checks, width)
    for start in range(0, len(lines), _BATCH):
        console.out("\n".join(lines[start : start + _BATCH]), highlight=False)


def print_export(console: Console, export: Export) -> None:
    """Print where a model was written, and which files."""
    tensors = f"{counted(export.tensors, 'tensor')} of {printable(str(export.path))}"
    lines = [f"exported {tensors}, {format_bytes(export.bytes)} in"]
    lines += [f"  {printable(str(path))}" for path in export.files]
    console.out("\n".join(lines), highlight=False)


def print_json(console: Console, document: Mapping[str, Any]) -> None:
    """Print a document as JSON, in pieces, since its whole text may need much memory."""
    pieces = json.JSONEncoder(indent=2, allow_nan=False).iterencode(document)
    while batch := "".join(islice(pieces, _BATCH)):
        console.out(batch, highlight=False, end="")
    console.out("", highlight=False)


def _run_lines(run: InspectedRun, width: int | None) -> list[str]:
    planned = f" of {run.rounds_planned}" if run.rounds_planned else ""
    job = printable(run.job) or "a run without a journal"
    rounds = "round" if run.rounds_completed == 1 and not planned else "rounds"
    status = f" {run.status} after" if run.status else ""
    lines = wrapped([f"{job}:{status} {run.rounds_completed}{planned} {rounds}"], width)
    models = [
        (
            str(model.round) if model.step is None else f"{model.round}.{model.step}",
            format_bytes(model.bytes),
            model.digest if width is None else model.digest[:_DIGEST_WIDTH],
            format_metrics(model.metrics),
        )
        for model in run.checkpoints
    ]
    costs = [
        (
            f"{row['round']}",
            f"{row['seconds']:.2f}",
            *(format_bytes(int(row[name])) for name in ("down", "up", "reused")),
            f"{row['failures']}",
        )
        for row in run.rounds
    ]
    sites = [
        (printable(site.name), f"{site.updates:,}", f"{site.weight:,}", f"{site.failures:,}")
        for site in run.sites
    ]
    for head, rows, left in (
        (("round", "bytes", "digest", "metrics"), models, 4),
        (("round", "seconds", "down", "up", "reused", "failures"), costs, 1),
        (("site", "updates", "weight", "failures"), sites, 1),
    ):
        filled = [row or ("...", *[""] * (len(head) - 1)) for row in shortened(rows)]
        lines += ["", *column_lines(head, filled, width, left=left)] if rows else []
    final = "the final model" if run.final_model else "the latest checkpoint"
    return [*lines, "", f"{final}:", ""]


def _tensor_lines(tensors: Sequence[TensorRow], width: int | None) -> list[str]:
    rows = [
        (printable(row.name), row.dtype, str(list(row.shape)), format_bytes(row.bytes))
        for row in tensors
    ]
    head = ("name", "dtype", "shape", "bytes")
    return column_lines(head, rows, width, left=3, limits={2: _SHAPE_WIDTH})


def _module_lines(modules: Sequence[Count], width: int | None) -> list[str]:
    rows = [
        (
            printable(str(row.name)),
            f"{row.tensors:,}",
            f"{row.parameters:,}",
            format_bytes(row.bytes),
        )
        for row in modules
    ]
    return column_lines(("module", "tensors", "parameters", "bytes"), rows, width, left=1)


def _statistics_lines(tensors: Sequence[TensorRow], width: int | None) -> list[str]:
    statistics = [row.stats for row in tensors if row.stats]
    any_non_finite = any(stats.non_finite for stats in statistics)
    head = ["name", "min", "max", "mean", "std", "norm", "zeros", *["NaN", "inf"] * any_non_finite]
    rows = []
    for row, stats in zip(tensors, statistics, strict=True):
        numbers = map(_number, (stats.min, stats.max, stats.mean, stats.std, stats.norm))
        zeros = _share(stats.zeros, stats.finite + stats.non_finite)
        counts = [f"{stats.nan:,}", f"{stats.non_finite - stats.nan:,}"] * any_non_finite
        rows.append([printable(row.name), *numbers, zeros, *counts])
    note = (
        "Of finite elements; std is that of the population; min and max of complex elements are "
        "of absolute values."
    )
    if not any_non_finite:
        note += " Every element is finite."
    return [*column_lines(head, rows, width, left=1), *wrapped([note], width)]


def _total_lines(findings: Findings, width: int | None) -> list[str]:
    lines = [""]
    if findings.shown != findings.total:
        lines.append(f"shown: {_counted(findings.shown)}; the whole model has:")
    lines.append(f"{_counted(findings.total)}, header of {format_bytes(findings.header_bytes)}")
    if len(findings.dtypes) > 1:
        lines += [f"  {code}: {_counted(count)}" for code, count in findings.dtypes.items()]
    files, size = counted(len(findings.files), "file"), format_bytes(findings.file_bytes)
    lines = wrapped([*lines, f"{findings.format}, {files}, {size}"], width)
    lines += section("streaming", _streaming_lines(findings), width)
    ties = [f"{printable(alias)} = {printable(name)}" for alias, name in findings.tied.items()]
    pairs = [f"{printable(key)}: {printable(text)}" for key, text in findings.metadata.items()]
    return [*lines, *section("tied", ties, width), *section("metadata", pairs, width)]


def _streaming_lines(findings: Findings) -> list[str]:
    cost, layout = findings.streaming, "streams as it lies"
    if findings.format != "safetensors":
        layout = "a run can start from it once it is saved as one .safetensors file"
    elif not cost.as_it_lies:
        layout = "laid out anew when a run starts from it"
    calls = counted(cost.per_tensor_calls, "call")
    return [
        f"{cost.chunks:,} chunks of {format_bytes(cost.chunk_size)}; the largest tensor has bytes "
        f"in {cost.largest_tensor_chunks:,}",
        f"{cost.requests:,} requests of {format_bytes(cost.request_size)}; tensor by tensor it "
        f"would be {calls}",
        layout,
    ]


def _difference_lines(difference: Difference, path: str, width: int | None) -> list[str]:
    room = None if width is None else width - len(GAP)
    lines = wrapped(["", f"from {printable(path)}", f"to   {printable(difference.other)}"], width)
    lines += section("added", _tensor_lines(difference.added, room), width)
    lines += section("removed", _tensor_lines(difference.removed, room), width)
    reshaped = [
        (
            printable(row.name),
            f"{row.dtype} {list(row.shape)}",
            f"{row.other_dtype} {list(row.other_shape)}",
        )
        for row in difference.reshaped
    ]
    limits = {1: _SHAPE_WIDTH, 2: _SHAPE_WIDTH}
    table = column_lines(("name", "was", "is"), reshaped, room, left=3, limits=limits)
    lines += section("reshaped", table, width)
    changed = [
        (
            printable(row.name),
            _number(row.l2),
            _number(row.max_difference),
            _share(row.equal_bytes, row.bytes),
            f"{row.non_finite:,}",
        )
        for row in difference.changed
    ]
    head = ("name", "L2", "max", "equal bytes", "non-finite")
    lines += section("changed", column_lines(head, changed, room, left=1), width)
    kinds = ("added", "removed", "reshaped", "changed")
    counts = ", ".join(f"{len(getattr(difference, kind)):,} {kind}" for kind in kinds)
    compared = "no tensor of both has a byte to compare"
    if difference.compared_bytes:
        compared = (
            f"compared {counted(difference.compared, 'tensor')}, "
            f"{format_bytes(difference.compared_bytes)}: "
            f"{_share(difference.equal_bytes, difference.compared_bytes)} of the bytes are equal, "
            f"L2 {difference.l2:.4g}"
        )
    return [*lines, "", *wrapped([counts, compared], width)]


def _counted(count: Count) -> str:
    numbers = f"{counted(count.tensors, 'tensor')}, {counted(count.parameters, 'parameter')}"
    return f"{numbers}, {format_bytes(count.bytes)}"


def _number(value: complex | None) -> str:
    """Format a number in three digits, a short integer in full, and None as ``-``."""
    if value is None:
        return "-"
    if isinstance(value, int) and len(str(value)) <= _MOST_DIGITS:
        return str(value)
    return f"{value:.3g}" if isinstance(value, complex) else f"{float(value):.3g}"


def _share(part: int, whole: int) -> str:
    """Format a share as a percentage, 0 or 100 only if that is exact; ``-`` of a whole of 0."""
    if not whole:
        return "-"
    if part in (0, whole):
        return "100%" if part else "0"
    return f"{min(max(part / whole, 0.001), 0.999):.1%}"
