"""Text at the end of a bench of codecs: bytes, seconds and error side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from flstream.bench.codec_compare import CodecMeasurement, CodecResult
from flstream.bench.codec_plan import CodecBenchPlan
from flstream.bench.exchange import ROUNDS
from flstream.report.bench.tables import describe_link, print_wrapped
from flstream.report.bench.verdict import shortfalls
from flstream.report.console import print_table
from flstream.report.text import counted
from flstream.units import format_bytes, format_seconds

_NOT_RUN = "-"


def print_codecs(console: Console, plan: CodecBenchPlan, results: Sequence[CodecResult]) -> None:
    """Print the figures of each case, those of the whole model, and how to read them."""
    measured = format_bytes(plan.measured_bytes)
    print_wrapped(console, _heading(plan))
    if plan.network is not None:
        print_wrapped(console, describe_link(plan.network, plan.measured_bytes), "dim")
    title = f"Measured with {measured}: round {ROUNDS}, bytes of one client"
    plain = results[0].median
    heads = ("codecs", "down", "up", "share", "s down", "s up", "s all", "error")
    rows = [_filled(heads, _measured_cells(each, plain)) for each in results]
    print_table(console, title, heads, rows)
    if plan.times > 1:
        title = f"For {format_bytes(plan.model_bytes)}: the same, times {plan.times:.4g}"
        whole_heads = ("codecs", "down", "up", "to download", "to upload", "in all")
        whole_rows = [_filled(whole_heads, _whole_cells(each, plan.times)) for each in results]
        print_table(console, title, whole_heads, whole_rows)
    for sentence in shortfalls(plan.repeat, results):
        print_wrapped(console, sentence)
    console.print()
    for note in _notes(plan):
        print_wrapped(console, note, "dim")
    if sentence := _verdict(plan, results):
        console.print()
        print_wrapped(console, sentence, "bold")


def _heading(plan: CodecBenchPlan) -> str:
    size, clients = format_bytes(plan.model_bytes), counted(plan.clients, "client")
    chunk = format_bytes(plan.chunk_size)
    runs = f"medians of {plan.repeat}" if plan.repeat > 1 else "one run each"
    return f"A model of {size}, {clients}, pulled in chunks of {chunk}: {runs}."


def _filled(heads: Sequence[str], row: Sequence[str]) -> list[str]:
    return [*row, *[_NOT_RUN] * (len(heads) - len(row))]


def _measured_cells(result: CodecResult, plain: CodecMeasurement | None) -> tuple[str, ...]:
    run = result.median
    if run is None or plain is None:
        return (result.label,)
    return (
        result.label,
        *_bytes(run, 1.0),
        _percent(run.moved_bytes / plain.moved_bytes, 1),
        *(f"{each:.2f}" if each < 100 else f"{each:.1f}" for each in _seconds(run)),
        _error(result),
    )


def _whole_cells(result: CodecResult, times: float) -> tuple[str, ...]:
    run = result.median
    if run is None:
        return (result.label,)
    seconds = (format_seconds(times * each) for each in _seconds(run))
    return (result.label, *_bytes(run, times), *seconds)


def _seconds(run: CodecMeasurement) -> tuple[float, float, float]:
    return run.download, run.upload_and_fold, run.round_seconds


def _percent(part: float, digits: int) -> str:
    """Return a part as a percentage of at most five characters."""
    text = f"{part:.{digits}%}"
    return text if len(text) <= 5 else f"{part:.{digits - 1}%}"


def _bytes(run: CodecMeasurement, times: float) -> tuple[str, str]:
    down, up = (format_bytes(round(times * each)) for each in (run.down_bytes, run.up_bytes))
    return down, up


def _error(result: CodecResult) -> str:
    if result.error is None or result.case.is_plain:
        return _NOT_RUN
    return "exact" if result.error.exact else _percent(result.error.relative, 2)


def _notes(plan: CodecBenchPlan) -> list[str]:
    pace = "on the machine's own pipe" if plan.network is None else "over the paced link"
    notes = [
        f"share: of the bytes without codecs, both ways. s: seconds {pace}, down, up with the "
        "fold, and of the whole round with training, encoding and making the model durable. error: "
        f"what the model of round {ROUNDS} lost, divided by all its changes, as L2 norms; exact: "
        "it has the same digest.",
        "Codecs with a loss are for updates alone, exact ones both ways; where there is a slash, "
        "what stands before it is for updates, and the rest for models.",
    ]
    if any(case.leaves_out for case in plan.cases):
        notes[1] += " What topk and ternary leave out, they send with later updates."
    if plan.times > 1:
        notes.append(
            f"The second table is not measured: it is the first one times {plan.times:.4g}, with "
            "waiting that a longer model does not repeat. --whole measures it."
        )
    return notes


def _verdict(plan: CodecBenchPlan, results: Sequence[CodecResult]) -> str:
    """Return a sentence on the shortest rounds, exact and not; empty with nothing to compare."""
    plain = results[0].median
    ran = [(each, run) for each in results[1:] if (run := each.median) is not None]
    if plain is None or not ran:
        return ""
    found = []
    for is_exact, what in ((False, "with a loss"), (True, "without")):
        group = [pair for pair in ran if pair[0].error and pair[0].error.exact is is_exact]
        if not group:
            continue
        best, run = min(group, key=lambda pair: pair[1].round_seconds)
        part = run.round_seconds / plain.round_seconds
        found.append(f"{best.label} takes {part:.0%} of the plain one's seconds, {what}")
    return f"The shortest round: {'; '.join(found)}."
