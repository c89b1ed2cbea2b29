"""Tables of runs, built once each from their records for the terminal, the page and notebooks.

A table is a list of named items and of fields: columns with what they take of an item. A field of
which no item has a value is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import mean, median_low, stdev
from typing import Any, NamedTuple

from flstream.report.metrics import Metric, metrics_of, values_by_round
from flstream.report.run_record import LoggedValues, RunRecord
from flstream.report.table import Column, Gap, Kind, Link, Mark, Row, Shade, Table, ends
from flstream.report.text import clip, counted, format_epsilon, pieces
from flstream.runs.history import PHASES, SiteRecord
from flstream.runs.summary import Summary
from flstream.telemetry.events import PrivacySpent
from flstream.text import brief_names, natural_key
from flstream.units import format_bytes

_MOST_COLUMNS = 60  # labels or models that have a column
# The names that NVFlare's readers look for say little to people.
_OWNERS = {"SRV_FL_global_model.pt": "final model", "SRV_best_FL_global_model.pt": "best model"}
# The first metric and the seconds of a round stay longest on a narrow terminal.
_PHASE_HEADS = {"download": 3, "train": 3, "up+fold": 3, "checkpoint": 5, "evaluate": 4}
# In columns of these kinds, zero stands for no value.
_NONE_IF_ZERO = ("bytes", "seconds", "duration", "rate")


class Field(NamedTuple):
    """A column of a table, as :class:`Column` has it, with what it takes of an item."""

    head: str
    kind: Kind
    rank: int  # as of a column; a field of rank 0 is there even if no item has a value
    cell: str | Callable[[Any], Any]  # path of attributes, or a function


def table_of(
    first: Column,
    items: Iterable[tuple[Any, Any]],
    fields: Iterable[Field],
    title: str = "",
    mark: Callable[[Any], Mark] = lambda _: "",
) -> Table:
    """Return the table of items, each after the cell that names it; None is an empty one."""
    items = list(items)
    columns, rows = [first], [[name] for name, _ in items]
    for field in fields:
        take = attrgetter(field.cell) if isinstance(field.cell, str) else field.cell
        cells = [None if item is None else take(item) for _, item in items]
        if field.kind in _NONE_IF_ZERO:
            cells = [cell or None for cell in cells]
        if not field.rank or any(cell is not None for cell in cells):
            columns.append(Column(field.head, field.kind, field.rank))
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell)
    return Table(
        columns, [Row(row, mark(item)) for row, (_, item) in zip(rows, items, strict=True)], title
    )


def _rows(table: Table) -> list[Row]:
    return [row for row in table.rows if isinstance(row, Row)]


def _ends(table: Table, *counts: int) -> Table:
    return replace(table, rows=ends(_rows(table), *counts))


class RoundRow(NamedTuple):
    """A round as a table shows it."""

    number: int  # 0 for the initial model
    metrics: Mapping[Metric, float]
    phases: Sequence[float] = (0.0,) * len(PHASES)
    privacy: PrivacySpent | None = None  # spent up to its end
    aggregator: str = ""  # site that folded its updates; empty for the server


def rounds_table(
    rounds: Sequence[RoundRow], metrics: Sequence[Metric], best: int | None, most: int = 20
) -> Table:
    """Return the table of rounds, of more than ``most`` the ends and the best, with metrics."""

    def spent(cell: Callable[[PrivacySpent], Any]) -> Callable[[RoundRow], Any]:
        return lambda row: row.privacy and cell(row.privacy)

    def metric_of(metric: Metric) -> Callable[[RoundRow], float | None]:
        return lambda row: row.metrics.get(metric)

    def seconds_of(phase: int) -> Callable[[RoundRow], float]:
        return lambda row: row.phases[phase]

    fields = [
        *(Field(m.title, "metric", 6 * bool(at), metric_of(m)) for at, m in enumerate(metrics)),
        Field("epsilon", "name", 1, spent(format_epsilon)),
        Field("clipping norm", "number", 6, spent(lambda privacy: privacy.clip_norm)),
        Field("clipped", "share", 6, spent(lambda privacy: privacy.clipped)),
        *(
            Field(head, "seconds", rank, seconds_of(at))
            for at, (head, rank) in enumerate(_PHASE_HEADS.items())
        ),
        Field("folded at", "name", 5, lambda row: row.aggregator or None),
    ]
    items = ((row.number, row) for row in rounds)
    title, first = "Rounds (in seconds)", Column("round", "count")
    table = table_of(first, items, fields, title, lambda row: "best" if row.number == best else "")
    return _ends(table, most // 4, most * 3 // 5, most)


def rounds_of(summary: Summary, most: int = 20) -> Table:
    """Return the table of a summary's rounds; before them the initial model where it was scored."""
    metrics = values_by_round(summary)
    rows = [RoundRow(0, metrics[0])] if 0 in metrics else []
    rows += [
        RoundRow(r.round, metrics.get(r.round, {}), r.phases, r.privacy, r.aggregator)
        for r in summary.rounds
    ]
    best = summary.best.round if summary.best else None
    return rounds_table(rows, metrics_of([summary]), best, most)


def transfer_table(summary: Summary) -> Table:
    """Return the table of transfers in each direction; without rows if nothing moved."""
    transfer = summary.transfer
    ways = {"down": transfer.down, "up": transfer.up}
    has_moved = any(way.bytes or way.reused for way in ways.values())
    fields = [
        Field("bytes", "bytes", 0, "bytes"),
        Field("direct", "bytes", 2, "direct"),
        Field("not sent", "bytes", 1, "reused"),
        Field("requests", "count", 2, "requests"),
        Field("chunks", "count", 4, "chunks"),
        Field("retries", "count", 3, "retries"),
        Field("seconds", "seconds", 1, "seconds"),
        Field("rate", "rate", 1, lambda way: way.bytes / way.seconds if way.seconds else None),
    ]
    title = f"Transfer ({transfer.mode} mode, {pieces(transfer.chunk_size)})"
    return table_of(Column("", "name"), ways.items() if has_moved else (), fields, title)


def memory_table(summary: Summary, most: int = 16, largest: int = 3) -> Table:
    """Return the table of processes' memory: of many clients, the largest and the median one."""
    clients, server = dict(summary.memory.clients), summary.memory.server
    processes = {"server": server} if server.peak_rss else {}
    if len(clients) > most:
        by_peak = sorted(clients, key=lambda name: -clients[name].peak_rss)
        middle = median_low(memory.peak_rss for memory in clients.values())
        processes |= {name: clients[name] for name in by_peak[:largest]}
        median = next(memory for memory in clients.values() if memory.peak_rss == middle)
        processes[f"median of {len(clients):,}"] = median
    else:
        processes |= clients
    fields = [
        Field("idle RSS", "bytes", 2, "idle_rss"),
        Field("peak RSS", "bytes", 1, "peak_rss"),
        Field("over idle", "bytes", 0, "over_idle"),
        Field("peak USS", "bytes", 3, "peak_uss"),
        Field("node", "name", 2, lambda memory: memory.node or None),  # unset is false
    ]
    title = f"Peak memory (the model is {format_bytes(summary.model.bytes)})"
    table = table_of(Column("process", "name"), processes.items(), fields, title)
    if len(clients) > most:
        gap = Gap(len(clients) - largest)
        return replace(table, rows=[*table.rows[:-1], gap, table.rows[-1]])
    return table


def nodes_table(summary: Summary) -> Table:
    """Return the table of nodes; without rows if all processes were on one machine."""
    memory, items = summary.memory, []
    for node, size in (memory.nodes or {}).items():
        workers = {name: client for name, client in memory.clients.items() if client.node == node}
        largest = max((client.over_idle for client in workers.values()), default=0)
        items.append((node, (size, largest, brief_names(list(workers), 8))))
    items.sort(key=lambda item: natural_key(item[0]))
    fields = [
        Field("all processes (PSS)", "bytes", 0, lambda item: item[0]),
        Field("largest over idle", "bytes", 1, lambda item: item[1]),
        Field("workers that it had last", "text", 2, lambda item: item[2]),
    ]
    return table_of(Column("node", "name"), items, fields, "Nodes")


def failures_table(summary: Summary, most: int = 5) -> Table:
    """Return the table of failed sites, those that failed most often first."""
    times = Counter(failure.site for failure in summary.failures)
    last = {failure.site: failure for failure in summary.failures}
    fields = [
        Field("times", "count", 1, lambda failure: times[failure.site]),
        Field("last round", "count", 2, "round"),
        Field("reason, the last time", "text", 0, "reason"),
    ]
    title = (
        f"Failures ({counted(len(times), 'site')}, {counted(len(summary.failures), 'time')}; "
        "summary.json has each reason)"
    )
    items = ((site, last[site]) for site, _ in times.most_common())
    table = table_of(Column("site", "name"), items, fields, title, lambda _: "bad")
    return _ends(table, most, 0, most)


def sites_table(sites: Mapping[str, SiteRecord]) -> Table:
    """Return the table of sites: those that failed most, then those that trained longest."""
    whole = sum(site.weight for site in sites.values()) or 1.0
    fields = [
        Field("updates", "count", 0, "updates"),
        Field("train", "seconds", 1, "trains"),
        Field("slowest", "seconds", 2, "slowest"),
        Field("download", "seconds", 3, "downloads"),
        Field("failures", "count", 1, "failures"),
        Field("weight", "number", 4, "weight"),
        Field("share", "share", 5, lambda site: site.weight / whole),
    ]
    items = (
        (site.name + " (asked no more)" * site.is_suspended, site)
        for site in sorted(sites.values(), key=_urgency)
    )
    failed = sum(bool(site.failures) for site in sites.values())
    title = f"{counted(len(sites), 'site')}, of which {failed:,} failed at least once (in seconds)"
    table = table_of(
        Column("site", "name"), items, fields, title, lambda site: "bad" if site.failures else ""
    )
    return _ends(table, 45, 15, 60)


def _urgency(site: SiteRecord) -> tuple[bool, int, float, list[tuple[int, str]]]:
    return not site.is_suspended, -site.failures, -site.slowest, natural_key(site.name)


def seconds_table(run: RunRecord, colors: Mapping[str, str]) -> Table:
    """Return the table of a run's seconds by phase, in the phases' colours."""
    rounds = [summary.phases for summary in run.summary.rounds]
    spent = {phase: sum(phases[at] for phases in rounds) for at, phase in enumerate(PHASES)}
    spent["start-up, and between the phases"] = max(run.seconds - sum(spent.values()), 0.0)
    rows = [
        Row([phase, seconds, seconds / (run.seconds or 1.0)], color=colors.get(phase, ""))
        for phase, seconds in spent.items()
    ]
    return Table([Column("", "name"), Column("seconds", "seconds"), Column("share", "share")], rows)


def settings_tables(runs: Sequence[RunRecord], labels: Sequence[str]) -> tuple[Table, Table]:
    """Return the settings that a run's job sets, and its defaults; of several, as they differ."""
    if len(runs) > 1:
        values = [{key: it.value for key, it in run.settings.items()} for run in runs]
        return _compared(values, labels)
    fields = [Field("value", "text", 0, "value"), Field("meaning", "text", 1, "meaning")]
    settings = runs[0].settings.items()
    own = [setting for setting in settings if not setting[1].is_default]
    others = [setting for setting in settings if setting[1].is_default]
    first = Column("key", "name")
    return table_of(first, own, fields), table_of(first, others, fields)


def versions_tables(runs: Sequence[RunRecord], labels: Sequence[str]) -> tuple[Table, Table]:
    """Return the versions that are not the same in all runs, and those that are."""
    return _compared([run.versions for run in runs], labels)


def _compared(values: Sequence[Mapping[str, str]], labels: Sequence[str]) -> tuple[Table, Table]:
    """Return the keys whose values differ between runs, and those that are the same in all."""
    keys, first = dict.fromkeys(key for run in values for key in run), Column("key", "name")
    cells = {key: [run.get(key) for run in values] for key in keys}
    same = [key for key in keys if len(set(cells[key])) == 1]
    differing = [Row([key, *cells[key]], "different") for key in keys if key not in same]
    return (
        Table([first, *map(Column, labels)], differing),
        Table([first, Column("value")], [Row([key, cells[key][0]]) for key in same]),
    )


def index_table(runs: Sequence[RunRecord], links: Sequence[Link]) -> Table:
    """Return the table of all runs of a folder, whose names link their pages."""
    return table_of(Column("run", "link"), zip(links, runs, strict=True), _RUN_FIELDS)


def comparison_table(
    runs: Sequence[RunRecord], labels: Sequence[str], colors: Sequence[str], *, spread: bool
) -> Table:
    """Return the table of runs that are compared, perhaps with rows of mean and spread."""
    rounds = {run.path: list(values_by_round(run.summary).values())[::-1] for run in runs}

    def last(metric: Metric) -> Callable[[RunRecord], float | None]:
        return lambda run: next((row[metric] for row in rounds[run.path] if metric in row), None)

    fields = [field for field in _RUN_FIELDS if field.head not in ("job", "of")]
    fields += [
        Field(f"last {metric.title}", "metric", 3, last(metric))
        for metric in metrics_of([run.summary for run in runs])
    ]
    items = zip(labels, runs, strict=True)
    table = table_of(Column("run", "name"), items, [*fields, *_COST_FIELDS])
    rows = [Row(row.cells, color=color) for row, color in zip(_rows(table), colors, strict=True)]
    return replace(table, rows=[*rows, *(_spread_rows(table) if spread else [])])


_RUN_FIELDS = [
    Field("status", "state", 0, "status"),
    Field("job", "name", 2, "summary.job"),
    Field("rounds", "count", 1, "summary.rounds_completed"),
    Field("sites", "count", 3, "summary.clients"),
    Field("best", "metric", 1, lambda run: run.summary.best and run.summary.best.value),
    Field("of", "name", 2, lambda run: run.summary.best and run.summary.best.metric),
    Field("in round", "count", 2, lambda run: run.summary.best and run.summary.best.round),
    Field("time", "duration", 1, "seconds"),
]
_COST_FIELDS = [
    Field("server over idle", "bytes", 4, "summary.memory.server.over_idle"),
    Field("largest client over idle", "bytes", 4, "summary.memory.largest_client"),
    Field("all processes (PSS)", "bytes", 4, "summary.memory.peak_total_pss"),
    Field("down", "bytes", 4, "summary.transfer.down.bytes"),
    Field("up", "bytes", 4, "summary.transfer.up.bytes"),
    Field("model digest", "name", 5, lambda run: run.summary.model.digest[:12] or None),
]


def _spread_rows(table: Table) -> list[Row]:
    rows: list[Row] = []
    columns = list(zip(*(row.cells for row in _rows(table)), strict=True))
    for name, fold in (("mean", mean), ("standard deviation", stdev)):
        cells: list[Any] = [name]
        for column, values in zip(table.columns[1:], columns[1:], strict=True):
            is_number = column.kind in ("metric", "bytes", "duration") and None not in values
            cells.append(fold(values) if is_number else None)
        rows.append(Row(cells, "best" if name == "mean" else ""))
    return rows


def across_sites_tables(run: RunRecord) -> list[Table]:
    """Return the tables of models scored at each site, and of how the data is split, if any."""
    matrix, key = run.cross_site, run.history.facts.key_metric
    names = [name for row in matrix.values() for entry in row.values() for name in entry]
    name = key if key in names else next(iter(names), "")
    scores = {
        site: {_OWNERS.get(owner, owner): entry.get(name) for owner, entry in row.items()}
        for site, row in matrix.items()
    }
    tables = [
        _matrix(f"{name} of each model (above) at each site; all are in cross_site/", scores),
        _matrix("Examples of each label at each site", run.split),
    ]
    return [table for table in tables if table.rows]


def _matrix(title: str, values: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Return a table whose cells are shaded by their values."""
    known = [value for row in values.values() for value in row.values() if value is not None]
    if not known:
        return Table([], [])
    low, span = min(known), (max(known) - min(known)) or 1.0
    columns = sorted({column for row in values.values() for column in row}, key=natural_key)
    shown = columns[:_MOST_COLUMNS]
    title += f" ({len(shown)} of {len(columns):,})" * (len(columns) > len(shown))
    rows = [
        Row([name, *(v if v is None else Shade(v, (v - low) / span) for v in map(row.get, shown))])
        for name, row in values.items()
    ]
    heads = [Column("site", "name"), *(Column(name, "shade", 1) for name in shown)]
    return Table(heads, ends(rows, 30, 10, 40), title)


def texts_table(logged: LoggedValues) -> Table:
    """Return the table of the last logged texts, the newest first."""
    fields = [
        Field("round", "count", 0, "round"),
        Field("step", "count", 1, "step"),
        Field("key", "name", 0, "key"),
        Field("text", "text", 0, lambda event: clip(event.text, 500)),
    ]
    items = ((event.site or "workflow", event) for event in logged.texts)
    table = table_of(Column("site", "name"), items, fields)
    more = logged.text_count - len(table.rows)
    return replace(table, rows=[*table.rows, Gap(more)]) if more else table
