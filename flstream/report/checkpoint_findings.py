"""Text of ``flstream inspect``: statistics, differences, verification and run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flstream.inspection.difference import Difference
from flstream.inspection.examine import InspectedRun, RunCheckpoint
from flstream.inspection.statistics import Statistics
from flstream.inspection.verification import Verification
from flstream.model.layout import TensorInfo
from flstream.report.columns import GAP, column_lines, fold, section, shortened, wrapped
from flstream.report.text import counted, format_metrics
from flstream.text import printable
from flstream.units import format_bytes

_SHAPE_WIDTH = 26
# Integers of more digits are rounded like floats.
_MOST_DIGITS = 9
_DIGEST_WIDTH = 12


def statistics_lines(
    tensors: Sequence[TensorInfo], statistics: Mapping[str, Statistics], width: int | None
) -> list[str]:
    """Return the table of statistics with a line for each tensor, and a note on the figures.

    Args:
        tensors: tensors to show, in order.
        statistics: statistics of the tensors, by name.
        width: columns of the terminal; None if the output is not a terminal.
    """
    any_non_finite = any(each.non_finite for each in statistics.values())
    head = ["name", "min", "max", "mean", "std", "zeros", *["non-finite"] * any_non_finite]
    rows = []
    for spec in tensors:
        each = statistics[spec.name]
        numbers = [_number(value) for value in (each.min, each.max, each.mean, each.std)]
        row = [printable(spec.name), *numbers, _share(each.zeros, spec.elements)]
        rows.append([*row, *[f"{each.non_finite:,}"] * any_non_finite])
    note = (
        "Of finite elements; std is that of the population; min and max of complex elements are "
        "of absolute values."
    )
    if not any_non_finite:
        note += " Every element is finite."
    return [
        *column_lines(head, rows, width, left=1),
        *([note] if width is None else fold(note, width)),
    ]


def difference_lines(difference: Difference, path: str, width: int | None) -> list[str]:
    """Return the lines about a difference: added, removed, reshaped and changed; then totals.

    Args:
        difference: difference from the other checkpoint.
        path: path of the first checkpoint.
        width: columns of the terminal; None if the output is not a terminal.
    """
    room = None if width is None else width - len(GAP)
    lines = ["", f"from {printable(path)}", f"to   {printable(difference.other)}"]
    lines = wrapped(lines, width)
    lines += section("added", _listed(difference.added, room), width)
    lines += section("removed", _listed(difference.removed, room), width)
    reshaped = [
        (printable(e.name), f"{e.dtype} {list(e.shape)}", f"{e.other_dtype} {list(e.other_shape)}")
        for e in difference.reshaped
    ]
    limits = {1: _SHAPE_WIDTH, 2: _SHAPE_WIDTH}
    table = column_lines(("name", "was", "is"), reshaped, room, left=3, limits=limits)
    lines += section("reshaped", table, width)
    lines += section("changed", _changed_lines(difference, room), width)
    kinds = ("added", "removed", "reshaped", "changed")
    counts = ", ".join(f"{len(getattr(difference, kind)):,} {kind}" for kind in kinds)
    if not difference.compared_bytes:
        return [*lines, "", *wrapped([counts, "no tensor of both has a byte to compare"], width)]
    compared = (
        f"{counted(difference.compared, 'tensor')}, {format_bytes(difference.compared_bytes)}"
    )
    equal = _share(difference.equal_bytes, difference.compared_bytes)
    found = f"compared {compared}: {equal} of the bytes are equal, L2 {difference.l2:.4g}"
    return [*lines, "", *wrapped([counts, found], width)]


def _changed_lines(difference: Difference, width: int | None) -> list[str]:
    any_non_finite = any(each.non_finite for each in difference.changed)
    head = ["name", "L2", "max", "equal bytes", *["non-finite"] * any_non_finite]
    rows = []
    for each in difference.changed:
        row = [printable(each.name), _number(each.l2), _number(each.max_difference)]
        row.append(_share(each.equal_bytes, each.bytes))
        rows.append([*row, *[f"{each.non_finite:,}"] * any_non_finite])
    return column_lines(head, rows, width, left=1)


def _listed(tensors: Sequence[TensorInfo], width: int | None) -> list[str]:
    rows = [
        (printable(spec.name), spec.dtype, str(list(spec.shape)), format_bytes(spec.nbytes))
        for spec in tensors
    ]
    head = ("name", "dtype", "shape", "bytes")
    return column_lines(head, rows, width, left=3, limits={2: _SHAPE_WIDTH})


def verification_lines(verified: Sequence[Verification], width: int | None) -> list[str]:
    """Return the lines with the checks of each verified file.

    Args:
        verified: the verified files.
        width: columns of the terminal; None if the output is not a terminal.
    """
    lines = []
    for each in verified:
        checks = [printable(check) for check in each.checks]
        lines += section(f"verified {printable(str(each.path))}", checks, width)
    return lines


def run_lines(run: InspectedRun | None, width: int | None) -> list[str]:
    """Return the lines about a run directory: status, checkpoints, and the inspected model.

    Args:
        run: the run directory; None for none, which takes no lines.
        width: columns of the terminal; None if the output is not a terminal.
    """
    if run is None:
        return []
    planned = f" of {run.rounds_planned}" if run.rounds_planned else ""
    name = printable(run.job) or "a run without a journal"
    rounds = "round" if run.rounds_completed == 1 and not planned else "rounds"
    status = f" {run.status} after" if run.status else ""
    lines = [f"{name}:{status} {run.rounds_completed}{planned} {rounds}"]
    if run.scored is not None:
        models = counted(run.scored.models, "model")
        line = f"scored across sites: {models} by {counted(run.scored.sites, 'site')}"
        lines.append(f"{line} (cross_site/cross_val_results.json)")
    lines = wrapped(lines, width)
    cells = [_checkpoint_cells(row, width is None) for row in shortened(run.checkpoints)]
    lines += ["", *column_lines(("round", "bytes", "digest", "metrics"), cells, width, left=4)]
    final = "the final model" if run.final_model else "the latest checkpoint"
    return [*lines, "", f"{final}:", ""]


def _checkpoint_cells(row: RunCheckpoint | None, is_whole: bool) -> tuple[str, str, str, str]:
    if row is None:
        return "...", "", "", ""
    digest = row.digest if is_whole else row.digest[:_DIGEST_WIDTH]
    number = f"{row.round}" if row.step is None else f"{row.round}.{row.step}"
    return number, format_bytes(row.bytes), digest, format_metrics(row.metrics)


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
