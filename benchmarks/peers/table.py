"""The tables, as a terminal and as Markdown have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contestants import TITLES
from record import Result, best
from rich import box
from rich.console import Console
from rich.table import Table

from flstream.units import format_bytes


class Grid(NamedTuple):
    """A table before it is drawn: a title, the heads of columns, the cells of rows."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str]


EXCHANGE_HEADS = ("", "start-up", "round", "times", "server", "times", "all")
RACE_HEADS = ("", "start-up", "round", "tasks/s", "share", "all")

# What the project has set itself, at 256 MiB and two clients: by peer, how many times as long its
# steady round has to be as flstream's; and for all, how many times the server's memory over idle.
ROUND_TARGETS = {"nvflare": 8, "flower": 15}
MEMORY_TARGET = 20


def exchange_grid(title: str, results: Sequence[Result]) -> Grid:
    """The exchange job: ratios are over the first row, flstream's."""
    ours = results[0]
    rows = []
    for each in results:
        if not each.good:
            rows.append((each.contestant.label, *_failed(EXCHANGE_HEADS)))
            continue
        round_ratio = server_ratio = ""
        if each is not ours and ours.good:
            round_ratio = _times(each.round / ours.round)
            server_ratio = _times(each.server_over_idle / ours.server_over_idle)
        rows.append(
            (
                each.contestant.label,
                f"{each.startup:.1f} s",
                f"{each.round:.2f} s",
                round_ratio,
                format_bytes(round(each.server_over_idle)),
                server_ratio,
                format_bytes(round(each.peak_pss)),
            )
        )
    return Grid(title, EXCHANGE_HEADS, rows, [*_failures(results), *_verdicts(results)])


def race_grid(title: str, results: Sequence[Result]) -> Grid:
    """The job on digits: shares are of flstream's tasks a second."""
    ours = results[0]
    rows = []
    for each in results:
        if not each.good:
            rows.append((each.contestant.label, *_failed(RACE_HEADS)))
            continue
        share = ""
        if each is not ours and ours.good:
            share = f"{each.tasks_a_second / ours.tasks_a_second:.2f}"
        rows.append(
            (
                each.contestant.label,
                f"{each.startup:.1f} s",
                f"{each.round:.3f} s",
                f"{each.tasks_a_second:,.0f}",
                share,
                format_bytes(round(each.peak_pss)),
            )
        )
    return Grid(title, RACE_HEADS, rows, _failures(results))


def _failed(heads: Sequence[str]) -> list[str]:
    return ["failed", *[""] * (len(heads) - 2)]


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def _failures(results: Sequence[Result]) -> list[str]:
    return [
        f"{each.contestant.label}: {len(each.failures)} of {len(each.runs)} runs failed: "
        + each.failures[-1]
        for each in results
        if each.failures
    ]


def _verdicts(results: Sequence[Result]) -> list[str]:
    """Ratios to the best settings of each peer, against the targets."""
    ours = results[0]
    if not ours.good:
        return []
    verdicts = []
    for peer, target in ROUND_TARGETS.items():
        theirs, server = best(results, peer, "round"), best(results, peer, "server_over_idle")
        if theirs is None or server is None:
            continue
        round_ratio, memory_ratio = theirs / ours.round, server / ours.server_over_idle
        verdicts.append(
            f"{TITLES[peer]} at its best takes {_against(round_ratio, target)} the time of a "
            f"round, and {_against(memory_ratio, MEMORY_TARGET)} the server's memory over idle."
        )
    return verdicts


def _against(ratio: float, target: int) -> str:
    missed = "" if ratio >= target else ", missed"
    return f"{_times(ratio)} times (target {target}{missed})"


def print_grid(console: Console, grid: Grid) -> None:
    """Draw a table in a terminal: 80 columns are enough."""
    table = Table(title=grid.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in grid.heads:
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for row in grid.rows:
        table.add_row(*row)
    console.print(table)
    for note in grid.notes:
        console.print(note, markup=False, highlight=False)
    console.print()


def markdown(grid: Grid) -> str:
    """The table for a page."""
    lines = [f"**{grid.title}**", "", _line(grid.heads), _line(["---"] * len(grid.heads))]
    lines += map(_line, grid.rows)
    lines += ["", *[f"{note}\n" for note in grid.notes]]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
