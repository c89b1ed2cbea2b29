"""Text at the end of a run: metrics and seconds of its rounds, transfers, memory and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median_low

from rich.console import Console
from rich.text import Text

from flstream.report.columns import wrapped
from flstream.report.console import print_facts, print_section, print_table
from flstream.report.metrics import UNSCORED, last_scored
from flstream.report.rounds import rounds_table
from flstream.report.text import (
    counted,
    format_metrics,
    format_throughput,
    pieces,
    privacy_words,
    shown_path,
)
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.telemetry.events import Transfer
from flstream.telemetry.memory import ProcessMemory
from flstream.text import MOST_ON_A_LINE, printable, quotable
from flstream.units import format_bytes, format_seconds

# If there are more clients, only the largest and the median are shown.
_MOST_CLIENTS = 16
_LARGEST = 3
_MOST_FAILED, _MOST_REASON_LINES = 5, 3
_MOST_SCORES = 6


def print_result(console: Console, summary: Summary, run: RunDirectory) -> None:
    """Print the tables of a run, its status and the paths of its files.

    Args:
        console: console to print to.
        summary: summary of the run.
        run: the run directory.
    """
    if summary.rounds:
        (head, *rows), more = rounds_table(summary, console.width)
        also = f"; {counted(more, 'more metric')} in summary.json" if more else ""
        print_table(console, f"Rounds (in seconds{also})", head, rows)
    if summary.transfer.down.requests:
        head, *rows = _transfer_table(summary)
        print_table(console, f"Transfer ({_mode(summary)})", head, rows)
    if summary.memory.server.peak_rss:
        model = format_bytes(summary.model.bytes)
        head, *rows = _memory_table(summary)
        print_table(console, f"Peak memory (the model is {model})", head, rows)
    if summary.memory.peak_total_pss:
        total = format_bytes(summary.memory.peak_total_pss)
        console.print(f"All processes together, shared pages counted once: at most {total}.")
    if summary.memory.nodes:
        each = [
            f"{printable(name)} {format_bytes(pss)}" for name, pss in summary.memory.nodes.items()
        ]
        console.print(f"On the nodes: {', '.join(each)}.", highlight=False)
    if summary.failures:
        print_section(console, _failures_title(summary))
        for line in _failure_lines(summary, console.width):
            console.print(Text(line))
    for warning in summary.warnings:
        console.print()
        console.print(Text(f"warning: {quotable(warning, MOST_ON_A_LINE)}", style="yellow"))
    console.print()
    print_facts(console, _facts(summary, run), console.width)


def _mode(summary: Summary) -> str:
    transfer = summary.transfer
    return f"{transfer.mode} mode, {pieces(transfer.chunk_size)}"


def _transfer_table(summary: Summary) -> list[list[str]]:
    ways = {"down": summary.transfer.down, "up": summary.transfer.up}
    reuses = any(way.reused for way in ways.values())
    reused = ["not sent"] if reuses else []
    table = [["", "bytes", *reused, "requests", "chunks", "retries", "seconds", "rate"]]
    for name, way in ways.items():
        saved = [format_bytes(way.reused)] if reuses else []
        table.append([name, format_bytes(way.bytes), *saved, *_transfer_row(way)])
    return table


def _transfer_row(way: Transfer) -> list[str]:
    rate = format_throughput(way.bytes / way.seconds) if way.seconds else "-"
    counts = [f"{count:,}" for count in (way.requests, way.chunks, way.retries)]
    return [*counts, f"{way.seconds:,.2f}", rate]


def _memory_table(summary: Summary) -> list[list[str]]:
    clients = summary.memory.clients
    heads = ["process", "idle RSS", "peak RSS", "over idle", "peak USS"]
    nodes = {name: each.node for name, each in clients.items() if isinstance(each.node, str)}
    table = [[*heads, *(["node"] if nodes else [])]]
    unplaced = [""] if nodes else []
    table.append(["server", *_memory_row(summary.memory.server), *unplaced])
    if len(clients) <= _MOST_CLIENTS:
        shown = list(clients)
    else:
        by_peak = sorted(clients, key=lambda name: clients[name].peak_rss, reverse=True)
        shown = by_peak[:_LARGEST]
    for name in shown:
        on = [printable(nodes.get(name, ""))] if nodes else []
        table.append([printable(name), *_memory_row(clients[name]), *on])
    if len(shown) < len(clients):
        middle = _median(list(clients.values()))
        name = f"median of {len(clients)} clients"
        table.append([name, *_memory_row(middle), *unplaced])
    return table


def _memory_row(memory: ProcessMemory) -> list[str]:
    # Zero stands for no measurement: the process ended before it.
    sizes = (memory.idle_rss, memory.peak_rss, memory.over_idle, memory.peak_uss)
    return [format_bytes(size) if size else "-" for size in sizes]


def _median(clients: Sequence[ProcessMemory]) -> ProcessMemory:
    """Return the client with the median peak RSS, so that all columns are of one process."""
    middle = median_low(client.peak_rss for client in clients)
    return next(client for client in clients if client.peak_rss == middle)


def _failures_title(summary: Summary) -> str:
    sites = counted(len({failure.site for failure in summary.failures}), "site")
    times = counted(len(summary.failures), "time")
    return f"Failures ({sites}, {times}; summary.json has each reason)"


def _failure_lines(summary: Summary, width: int) -> list[str]:
    """Return the sites that failed most often, each with its last reason."""
    times = Counter(failure.site for failure in summary.failures)
    last = {failure.site: failure for failure in summary.failures}
    sentences = [
        f"{printable(site)}: {counted(count, 'time')}, last in round {last[site].round}: "
        f"{printable(last[site].reason)}"
        for site, count in times.most_common(_MOST_FAILED)
    ]
    if len(times) > len(sentences):
        sentences.append(f"... and {counted(len(times) - len(sentences), 'more site')}")
    return wrapped(sentences, width, _MOST_REASON_LINES)


def _benched(summary: Summary) -> str:
    names = ", ".join(summary.benched[:_MOST_FAILED])
    more = len(summary.benched) - _MOST_FAILED
    return printable(f"{names} and {more:,} more" if more > 0 else names)


def _facts(summary: Summary, run: RunDirectory) -> list[tuple[str, Text]]:
    facts = []
    if summary.best is not None:
        best = format_metrics({summary.best.metric: summary.best.value})
        facts.append(("best round", Text(f"{summary.best.round}, {best}")))
    scored = last_scored(summary)
    if scored is not None and summary.evaluate == "received":
        facts.append(("last scored", Text(f"{scored.round}, {_scores(scored.metrics)}")))
        facts.append(("final model", Text(UNSCORED)))
    elif scored is not None:
        facts.append(("final model", Text(_scores(scored.metrics))))
    if summary.privacy is not None:
        facts.append(("privacy", Text(privacy_words(summary.privacy))))
    style = {"finished": "bold green", "failed": "bold red"}.get(summary.status, "bold yellow")
    rounds = counted(summary.rounds_completed, "round")
    ended = Text(summary.status, style=style)
    ended.append(f" after {rounds}, {format_seconds(summary.wall_seconds)}", style="none")
    facts.append(("status", ended))
    if summary.ended_early is not None:
        facts.append(("ended early", Text(printable(summary.ended_early))))
    if summary.benched:
        facts.append(("asked no more", Text(_benched(summary))))
    model = _model(summary, run)
    if model is not None:
        facts.append(("model", _path(model)))
    facts.append(("run directory", _path(run.path)))
    return facts


def _scores(metrics: Mapping[str, float | None]) -> str:
    shown = dict(islice(metrics.items(), _MOST_SCORES))
    more = len(metrics) - len(shown)
    return format_metrics(shown) + (f" and {more:,} more" if more else "")


def _path(path: Path) -> Text:
    # A path is never broken over two lines, so that it can be copied.
    return Text(printable(shown_path(path)), no_wrap=True)


def _model(summary: Summary, run: RunDirectory) -> Path | None:
    """Return the path of the run's latest model; None if there is none."""
    if summary.status == "finished":
        return run.final_model
    return run.checkpoint(summary.rounds_completed) if summary.model.bytes else None
