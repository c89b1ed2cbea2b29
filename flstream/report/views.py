"""Tables of runs, built once from records for terminal, page and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median_low, stdev
from typing import TYPE_CHECKING, Any

from flstream.job.device import NANOSECONDS
from flstream.report.metrics import Metric, last_values, metrics_of, values_by_round
from flstream.report.run_record import LoggedValues, RunRecord
from flstream.report.table import Column, Gap, Link, Row, Shade, Table, ends
from flstream.report.text import clip, counted, format_date, format_epsilon, pieces
from flstream.runs.history import PHASES, SiteRecord
from flstream.runs.simulated_times import SimulatedTimes, SiteTimes
from flstream.runs.summary import RoundSummary, Summary
from flstream.telemetry.events import EVALUATOR
from flstream.text import brief_names, natural_key
from flstream.units import format_bytes

if TYPE_CHECKING:
    from flstream.report.run_groups import RunGroup

_MOST_COLUMNS = 60  # labels or models that have a column
_MOST_SITES, _FIRST_SITES = 60, 45
# Columns of status, rounds, best and time; and of a name beside them on a narrow terminal.
_FACTS, _LEAST_NAME = 44, 24
# The names that NVFlare's readers look for say little to people.
_OWNERS = {"SRV_FL_global_model.pt": "final model", "SRV_best_FL_global_model.pt": "best model"}


def rounds_table(
    rounds: Sequence[RoundSummary],
    values: Mapping[int, Mapping[Metric, float]],
    metrics: Sequence[Metric],
    best: int | None = None,
    most: int = 20,
) -> Table:
    """Return the table of rounds: with more than ``most``, the ends and the best.

    ``values`` has the metrics of each round by its number, and ``metrics`` those with a column, in
    order. Round 0 is the initial model.
    """

    def metric_of(metric: Metric) -> Callable[[RoundSummary], float | None]:
        return lambda row: values.get(row.round, {}).get(metric)

    # The first metric and the seconds of a round stay longest on a narrow terminal.
    columns = [
        *(Column(m.title, "metric", 6 * bool(at), metric_of(m)) for at, m in enumerate(metrics)),
        Column("simulated", "duration", 1, lambda row: row.simulated_seconds or None),
        Column("epsilon", "name", 1, lambda row: row.privacy and format_epsilon(row.privacy)),
        Column("clipping norm", "number", 6, lambda row: row.privacy and row.privacy.clip_norm),
        Column("clipped", "share", 6, lambda row: row.privacy and row.privacy.clipped),
        Column("download", "seconds", 3, "download"),
        Column("train", "seconds", 3, "train"),
        Column("up+fold", "seconds", 3, "upload_and_fold"),
        Column("checkpoint", "seconds", 5, "checkpoint"),
        Column("evaluate", "seconds", 4, "evaluate"),
        Column("folded at", "name", 5, lambda row: row.aggregator or None),
    ]
    return Table.of(
        Column("round", "count"),
        ((row.round, row) for row in rounds),
        columns,
        "Rounds (in seconds)",
        lambda row: "best" if row.round == best else "",
        (most // 4, most * 3 // 5, most),
    )


def rounds_of(summary: Summary, most: int = 20) -> Table:
    """Return the table of a summary's rounds, after the scored initial model, if any."""
    values = values_by_round(summary)
    initial = [RoundSummary(0, 0.0, 0.0, 0.0, 0.0)] if 0 in values else []
    best = summary.best.round if summary.best else None
    return rounds_table([*initial, *summary.rounds], values, metrics_of([summary]), best, most)


def transfer_table(summary: Summary) -> Table:
    """Return the table of transfers in each direction; without rows if nothing moved."""
    transfer = summary.transfer
    ways = {"down": transfer.down, "up": transfer.up}
    has_moved = any(way.bytes or way.reused for way in ways.values())
    columns = [
        Column("bytes", "bytes", 0, "bytes"),
        Column("direct", "bytes", 2, "direct"),
        Column("not sent", "bytes", 1, "reused"),
        Column("requests", "count", 2, "requests"),
        Column("chunks", "count", 4, "chunks"),
        Column("retries", "count", 3, "retries"),
        Column("seconds", "seconds", 1, "seconds"),
        Column("rate", "rate", 1, lambda way: way.bytes / way.seconds if way.seconds else None),
    ]
    title = f"Transfer ({transfer.mode} mode, {pieces(transfer.chunk_size)})"
    return Table.of(Column("", "name"), ways.items() if has_moved else (), columns, title)


def memory_table(summary: Summary, most: int = 16, largest: int = 3) -> Table:
    """Return the table of processes' memory, with the largest and the median client."""
    clients, server = dict(summary.memory.clients), summary.memory.server
    processes = {"server": server} if server.peak_rss else {}
    if summary.memory.evaluator:
        processes[EVALUATOR] = summary.memory.evaluator
    if len(clients) > most:
        by_peak = sorted(clients, key=lambda name: -clients[name].peak_rss)
        middle = median_low(memory.peak_rss for memory in clients.values())
        processes |= {name: clients[name] for name in by_peak[:largest]}
        median = next(memory for memory in clients.values() if memory.peak_rss == middle)
        processes[f"median of {len(clients):,}"] = median
    else:
        processes |= clients
    columns = [
        Column("idle RSS", "bytes", 2, "idle_rss"),
        Column("peak RSS", "bytes", 1, "peak_rss"),
        Column("over idle", "bytes", 0, "over_idle"),
        Column("peak USS", "bytes", 3, "peak_uss"),
        Column("node", "name", 2, lambda memory: memory.node or None),  # unset is false
    ]
    title = f"Peak memory (the model is {format_bytes(summary.model.bytes)})"
    table = Table.of(Column("process", "name"), processes.items(), columns, title)
    rows = list(table.rows)
    if len(clients) > most:
        rows.insert(-1, Gap(len(clients) - largest))
    group = summary.memory
    for what, peak in (
        ("all, without cached files", group.group_peak_anonymous),
        ("all, with cached files", group.group_peak),
    ):
        if peak:
            peaks = {"process": what, "peak RSS": peak}
            rows.append(Row([peaks.get(column.head) for column in table.columns]))
    return replace(table, rows=rows)


def nodes_table(summary: Summary) -> Table:
    """Return the table of nodes; without rows if all processes were on one machine."""
    memory, items = summary.memory, []
    for node, size in (memory.nodes or {}).items():
        workers = {name: client for name, client in memory.clients.items() if client.node == node}
        largest = max((client.over_idle for client in workers.values()), default=0)
        items.append((node, (size, largest, brief_names(list(workers), 8))))
    items.sort(key=lambda item: natural_key(item[0]))
    columns = [
        Column("all processes (PSS)", "bytes", 0, lambda item: item[0]),
        Column("largest over idle", "bytes", 1, lambda item: item[1]),
        Column("workers that it had last", "text", 2, lambda item: item[2]),
    ]
    return Table.of(Column("node", "name"), items, columns, "Nodes")


def sites_table(sites: Mapping[str, SiteRecord], times: SimulatedTimes | None = None) -> Table:
    """Return the table of sites: the most failed, then the longest trained."""
    whole = sum(site.weight for site in sites.values()) or 1.0

    known = {} if times is None else times.sites
    has_late = any(site.late for site in sites.values())
    has_stale = any(site.stale for site in known.values())

    def simulated(take: Callable[[SiteTimes], float | None]) -> Callable[[SiteRecord], Any]:
        return lambda site: take(known[site.name]) if site.name in known else None

    columns = [
        Column("updates", "count", 0, "updates"),
        Column("trainings", "count", 1, simulated(lambda site: site.trainings)),
        Column("simulated", "duration", 1, simulated(lambda site: site.busy / NANOSECONDS)),
        Column("stale", "count", 1, simulated(lambda site: site.stale if has_stale else None)),
        Column("train", "seconds", 1, "trains"),
        Column("slowest", "seconds", 2, "slowest"),
        Column("download", "seconds", 3, "downloads"),
        Column("failures", "count", 1, lambda site: site.failures - site.late),
        Column("late or away", "count", 1, lambda site: site.late if has_late else None),
        Column("weight", "number", 4, "weight"),
        Column("share", "share", 5, lambda site: site.weight / whole),
    ]
    by_urgency = sorted(
        sites.values(),
        key=lambda it: (
            not it.is_suspended,
            it.late - it.failures,
            -it.late,
            -it.slowest,
            natural_key(it.name),
        ),
    )
    shown, hidden = by_urgency, max(len(by_urgency) - _MOST_SITES, 0)
    if hidden:
        shown = by_urgency[:_FIRST_SITES] + by_urgency[_FIRST_SITES - _MOST_SITES :]
    items = ((site.name + " (asked no more)" * site.is_suspended, site) for site in shown)
    failed = sum(site.failures > site.late for site in sites.values())
    title = f"{counted(len(sites), 'site')}, of which {failed:,} failed at least once (in seconds)"
    first = Column("site", "name")
    table = Table.of(
        first, items, columns, title, lambda it: "bad" if it.failures > it.late else ""
    )
    if not hidden:
        return table
    rows = [*table.rows[:_FIRST_SITES], Gap(hidden), *table.rows[_FIRST_SITES:]]
    return replace(table, rows=rows)


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
    """Return the tables of the settings that jobs set or differ in, and of the rest."""
    if len(runs) > 1:
        return _compared([run.values for run in runs], labels)
    columns = [Column("value", "text", 0, "value"), Column("meaning", "text", 1, "meaning")]
    settings = runs[0].settings.items()
    own = [setting for setting in settings if not setting[1].is_default]
    others = [setting for setting in settings if setting[1].is_default]
    first = Column("key", "name")
    return Table.of(first, own, columns), Table.of(first, others, columns)


def versions_tables(runs: Sequence[RunRecord], labels: Sequence[str]) -> tuple[Table, Table]:
    """Return the tables of differing versions, and of versions common to all runs."""
    return _compared([run.versions for run in runs], labels)


def _compared(values: Sequence[Mapping[str, str]], labels: Sequence[str]) -> tuple[Table, Table]:
    """Return the keys with different values in runs, and the keys with the same."""
    keys, first = dict.fromkeys(key for run in values for key in run), Column("key", "name")
    cells = {key: [run.get(key) for run in values] for key in keys}
    same = [key for key in keys if len(set(cells[key])) == 1]
    differing = [Row([key, *cells[key]], "different") for key in keys if key not in same]
    return (
        Table([first, *map(Column, labels)], differing),
        Table([first, Column("value")], [Row([key, cells[key][0]]) for key in same]),
    )


def runs_table(runs: Sequence[RunRecord], folder: Path, width: int) -> Table:
    """Return the table of all runs below a folder, for a terminal of a width."""
    names = [str(run.path.relative_to(folder.absolute())) for run in runs]
    # Names are to be copied, so most other columns give way to them, but for status and best.
    longest = max(map(len, names))
    first = Column("run", "name", least=min(longest, max(width - _FACTS, _LEAST_NAME)))
    columns = [*_RUN_COLUMNS, Column("begun", "name", 3, _begun)]
    return Table.of(first, zip(names, runs, strict=True), columns)


def _begun(run: RunRecord) -> str | None:
    return format_date(run.begun) if run.begun else None


def comparison_table(
    runs: Sequence[RunRecord], names: Sequence[Link], colors: Sequence[str]
) -> Table:
    """Return the table of compared runs."""
    last_of = {run.path: last_values(run.summary) for run in runs}

    def last(metric: Metric) -> Callable[[RunRecord], float | None]:
        return lambda run: last_of[run.path].get(metric)

    columns = [column for column in _RUN_COLUMNS if column.head not in ("job", "of")]
    columns += _TIME_COLUMNS
    columns += [
        Column(f"last {metric.title}", "metric", 3, last(metric))
        for metric in metrics_of([run.summary for run in runs])
    ]
    items = zip(names, runs, strict=True)
    table = Table.of(Column("run", "link"), items, [*columns, *_COST_COLUMNS])
    cells = [row.cells for row in table.rows if isinstance(row, Row)]
    rows = [Row(row, color=color) for row, color in zip(cells, colors, strict=True)]
    return replace(table, rows=rows)


_RUN_COLUMNS = [
    Column("status", "state", 0, "status"),
    Column("job", "name", 2, "summary.job"),
    Column("rounds", "count", 1, "summary.rounds_completed"),
    Column("sites", "count", 3, "summary.clients"),
    Column("best", "metric", 1, lambda run: run.summary.best and run.summary.best.value),
    Column("of", "name", 2, lambda run: run.summary.best and run.summary.best.metric),
    Column("in round", "count", 2, lambda run: run.summary.best and run.summary.best.round),
    Column("time", "duration", 1, "seconds"),
]
_TIME_COLUMNS = [
    Column("simulated time", "duration", 1, "simulated_seconds"),
    Column("simulated to best", "duration", 2, "seconds_to_best"),
]
_COST_COLUMNS = [
    Column("server over idle", "bytes", 4, "summary.memory.server.over_idle"),
    Column("largest client over idle", "bytes", 4, "summary.memory.largest_client"),
    Column("all processes (PSS)", "bytes", 4, "summary.memory.peak_total_pss"),
    Column("their group", "bytes", 5, lambda it: it.summary.memory.group_peak_anonymous or None),
    Column("down", "bytes", 4, "summary.transfer.down.bytes"),
    Column("up", "bytes", 4, "summary.transfer.up.bytes"),
    Column("model digest", "name", 5, lambda run: run.summary.model.digest[:12] or None),
]


def groups_table(runs: Sequence[RunRecord], groups: Sequence[RunGroup]) -> Table:
    """Return the table of groups of runs: mean and spread of the best and the last scores."""
    last = [last_values(run.summary) for run in runs]
    metrics = [metric for metric in metrics_of([run.summary for run in runs]) if not metric.kind]
    columns = [Column("group", "name"), Column("runs", "count")]
    scored = [best for run in runs if (best := run.summary.best) is not None]
    best_title = f"best {scored[0].metric}" if scored else "best"
    for title in (best_title, *(f"last {metric.title}" for metric in metrics)):
        columns += [Column(title, "metric", 1), Column(f"{title}, spread", "metric", 3)]
    times = [(run.simulated_seconds, run.seconds_to_best) for run in runs]
    has_times = any(seconds is not None for seconds, _ in times)
    if has_times:
        for column in _TIME_COLUMNS:
            columns += [column, column._replace(head=f"{column.head}, spread")]
    rows = []
    for group in groups:
        scores = [
            [best.value for at in group.runs if (best := runs[at].summary.best) is not None],
            *([last[at][metric] for at in group.runs if metric in last[at]] for metric in metrics),
        ]
        for place in range(2 * has_times):
            known = (times[at][place] for at in group.runs)
            scores.append([seconds for seconds in known if seconds is not None])
        cells: list[Any] = [group.label, len(group.runs)]
        for values in scores:
            cells += [mean(values) if values else None, stdev(values) if values[1:] else None]
        rows.append(Row(cells, color=group.color))
    means = [row.cells[2] for row in rows if row.cells[2] is not None]
    if means and len(rows) > 1:
        best = (min if runs[0].history.facts.key_metric_mode == "min" else max)(means)
        rows = [row._replace(mark="best") if row.cells[2] == best else row for row in rows]
    return Table(columns, rows)


def across_sites_tables(run: RunRecord) -> list[Table]:
    """Return the tables of models' scores at sites, and of the data's split, if any."""
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
    columns = [
        Column("round", "count", 0, "round"),
        Column("step", "count", 1, "step"),
        Column("key", "name", 0, "key"),
        Column("text", "text", 0, lambda event: clip(event.text, 500)),
    ]
    items = ((event.site or "workflow", event) for event in logged.texts)
    table = Table.of(Column("site", "name"), items, columns)
    more = logged.text_count - len(table.rows)
    return replace(table, rows=[*table.rows, Gap(more)]) if more else table
