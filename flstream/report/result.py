"""Text at the end of a run: tables of its rounds, transfers and memory, its failures and facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.text import Text

from flstream.report import views
from flstream.report.console import print_facts, print_tables
from flstream.report.metrics import UNSCORED, last_scored
from flstream.report.table import STATE_STYLES, Gap, Table
from flstream.report.text import counted, format_metrics, privacy_words, shown_path, wrapped
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.text import MOST_ON_A_LINE, brief_names, printable, quotable
from flstream.units import format_bytes, format_seconds

_MOST_SCORES, _MOST_REASON_LINES = 6, 3


def print_result(console: Console, summary: Summary, run: RunDirectory) -> None:
    """Print the tables of a run, its status and the paths of its files."""
    print_tables(
        console,
        views.rounds_of(summary),
        views.transfer_table(summary),
        views.memory_table(summary),
    )
    if summary.memory.peak_total_pss:
        total = format_bytes(summary.memory.peak_total_pss)
        console.print(f"All processes together, shared pages counted once: at most {total}.")
    print_tables(console, views.nodes_table(summary))
    if summary.failures:
        _print_failures(console, views.failures_table(summary))
    for warning in summary.warnings:
        console.print()
        console.print(Text(f"warning: {quotable(warning, MOST_ON_A_LINE)}", style="yellow"))
    console.print()
    print_facts(console, _facts(summary, run), console.width)


def _print_failures(console: Console, table: Table) -> None:
    """Print failed sites as sentences, since reasons are long."""
    sentences = []
    for row in table.rows:
        if isinstance(row, Gap):
            sentences.append(str(row))
        else:
            site, count, number, reason = row.cells
            times = f"{counted(count, 'time')}, last in round {number}"
            sentences.append(f"{printable(site)}: {times}: {printable(reason)}")
    console.print()
    console.print(Text(table.title, style="bold"))
    for line in wrapped(sentences, console.width, _MOST_REASON_LINES):
        console.print(Text(line))


def _facts(summary: Summary, run: RunDirectory) -> Iterator[tuple[str, Text]]:
    if summary.best is not None:
        best = format_metrics({summary.best.metric: summary.best.value})
        yield "best round", Text(f"{summary.best.round}, {best}")
    scored, is_received = last_scored(summary), summary.evaluate == "received"
    if scored is not None and is_received:
        yield "last scored", Text(f"{scored[0]}, {_scores(scored[1])}")
        yield "final model", Text(UNSCORED)
    elif scored is not None:
        yield "final model", Text(_scores(scored[1]))
    if summary.privacy is not None:
        yield "privacy", Text(privacy_words(summary.privacy))
    ended = Text(summary.status, style=STATE_STYLES.get(summary.status, ""))
    rounds = counted(summary.rounds_completed, "round")
    yield "status", ended.append(f" after {rounds}, {format_seconds(summary.wall_seconds)}", "none")
    if summary.ended_early is not None:
        yield "ended early", Text(printable(summary.ended_early))
    if summary.benched:
        yield "asked no more", Text(brief_names(summary.benched, 8))
    if summary.status == "finished":
        yield "model", _path(run.final_model)
    elif summary.model.bytes:
        yield "model", _path(run.checkpoint(summary.rounds_completed))
    yield "run directory", _path(run.path)


def _scores(metrics: Mapping[str, float | None]) -> str:
    shown = dict(islice(metrics.items(), _MOST_SCORES))
    more = len(metrics) - len(shown)
    return format_metrics(shown) + (f" and {more:,} more" if more else "")


def _path(path: Path) -> Text:
    # A path is never broken over two lines, so that it can be copied.
    return Text(printable(shown_path(path)), no_wrap=True)
