"""Tables of runs, built once each from their records for the terminal, the page and notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median_low, stdev
from typing import Any, NamedTuple, TypeVar

from flstream.report.metrics import Metric, metrics_of, values_by_round
from flstream.report.run_record import LoggedValues, RunRecord, Setting
from flstream.report.table import Column, Gap, Link, Mark, Row, Shade, Table, ends
from flstream.report.text import clip, counted, format_epsilon, pieces
from flstream.runs.round_record import PHASES
from flstream.runs.site_record import SiteRecord
from flstream.runs.summary import Summary
from flstream.telemetry.events import PrivacySpent, Transfer
from flstream.telemetry.memory import ProcessMemory
from flstream.text import brief_names, natural_key
from flstream.units import format_bytes

ItemT = TypeVar("ItemT")
Fields = list[tuple[Column, Callable[[ItemT], Any]]]
"""Columns of a table, each with the function that returns its cell of an item."""

_MOST_COLUMNS = 60  # labels or models that have a column
# The names that NVFlare's readers look for say little to people.
_OWNERS = {"SRV_FL_global_model.pt": "final model", "SRV_best_FL_global_model.pt": "best model"}
# The first metric and the seconds of a round stay longest on a narrow terminal.
_PHASE_COLUMNS = [
    Column(head, "seconds", rank)
    for head, rank in zip(
        ("download", "train", "up+fold", "checkpoint", "evaluate"), (3, 3, 3, 5, 4), strict=True
    )
]


def _rows(items: Iterable[ItemT], fields: Fields[ItemT], mark: Mark = "") -> list[Row]:
    return [Row([cell(item) for _, cell in fields], mark) for item in items]


def _columns(fields: Fields[ItemT]) -> list[Column]:
    return [column for column, _ in fields]


class RoundRow(NamedTuple):
    """A round as a table shows it.

    Attributes:
        number: number of the round; 0 for the initial model.
        metrics: finite metrics.
        phases: seconds of download, train, upload and fold, checkpoint, evaluate; none for round 0.
        privacy: privacy spent up to its end; None where the job is not private.
        aggregator: site that folded its updates; empty for the server.
    """

    number: int
    metrics: Mapping[Metric, float]
    phases: Sequence[float] = ()
    privacy: PrivacySpent | None = None
    aggregator: str = ""


def _value_of(metric: Metric) -> Callable[[RoundRow], float | None]:
    return lambda row: row.metrics.get(metric)


def _seconds_of(phase: int) -> Callable[[RoundRow], float | None]:
    """Return a function for a phase's seconds; zero stands for a round without an evaluation."""
    is_last = phase == len(PHASES) - 1
    return lambda row: (row.phases[phase] or (None if is_last else 0.0)) if row.phases else None


def rounds_table(
    rounds: Sequence[RoundRow], metrics: Sequence[Metric], best: int | None, most: int = 20
) -> Table:
    """Return the table of rounds.

    Args:
        rounds: rounds in order.
        metrics: metrics in the order of their columns.
        best: number of the best round; None for none.
        most: number of rounds up to which all are shown.
    """
    fields: Fields[RoundRow] = [(Column("round", "count"), lambda row: row.number)]
    for place, metric in enumerate(metrics):
        column = Column(metric.title, "metric", 6 * bool(place))
        fields.append((column, _value_of(metric)))
    if any(row.privacy for row in rounds):
        fields += [
            (Column("epsilon", "name", 1), lambda row: row.privacy and format_epsilon(row.privacy)),
            (
                Column("clipping norm", "number", 6),
                lambda row: row.privacy and row.privacy.clip_norm,
            ),
            (Column("clipped", "share", 6), lambda row: row.privacy and row.privacy.clipped),
        ]
    fields += [(column, _seconds_of(phase)) for phase, column in enumerate(_PHASE_COLUMNS)]
    if any(row.aggregator for row in rounds):
        fields.append((Column("folded at", "name", 5), lambda row: row.aggregator or "server"))
    rows = (_rows([row], fields, "best" if row.number == best else "")[0] for row in rounds)
    shown = ends(rows, most // 4, most * 3 // 5, most)
    return Table(_columns(fields), shown, "Rounds (in seconds)")


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
    ways = {"down": transfer.down, "up": transfer.up} if transfer.down.requests else {}
    fields: Fields[tuple[str, Transfer]] = [
        (Column("", "name"), lambda way: way[0]),
        (Column("bytes", "bytes"), lambda way: way[1].bytes),
        (Column("not sent", "bytes", 1), lambda way: way[1].reused),
        (Column("requests", "count", 2), lambda way: way[1].requests),
        (Column("chunks", "count", 4), lambda way: way[1].chunks),
        (Column("retries", "count", 3), lambda way: way[1].retries),
        (Column("seconds", "seconds", 1), lambda way: way[1].seconds),
        (
            Column("rate", "rate", 1),
            lambda way: way[1].bytes / way[1].seconds if way[1].seconds else None,
        ),
    ]
    if not any(way.reused for way in ways.values()):
        del fields[2]
    title = f"Transfer ({transfer.mode} mode, {pieces(transfer.chunk_size)})"
    return Table(_columns(fields), _rows(ways.items(), fields), title)


def memory_table(summary: Summary, most: int = 16, largest: int = 3) -> Table:
    """Return the table of processes' memory: of many clients, the largest and the median one.

    Args:
        summary: summary of the run.
        most: number of clients up to which all are shown.
        largest: clients to show where there are more.
    """
    server, clients = summary.memory.server, summary.memory.clients
    # Zero stands for no measurement: the process ended before it.
    fields: Fields[tuple[str, ProcessMemory]] = [
        (Column("process", "name"), lambda row: row[0]),
        (Column("idle RSS", "bytes", 2), lambda row: row[1].idle_rss or None),
        (Column("peak RSS", "bytes", 1), lambda row: row[1].peak_rss or None),
        (Column("over idle", "bytes"), lambda row: row[1].over_idle or None),
        (Column("peak USS", "bytes", 3), lambda row: row[1].peak_uss or None),
    ]
    if any(isinstance(memory.node, str) for memory in clients.values()):
        fields.append((Column("node", "name", 2), lambda row: row[1].node or None))
    shown = list(clients.items())
    hidden: list[Row | Gap] = []
    if len(clients) > most:
        shown.sort(key=lambda client: -client[1].peak_rss)
        middle = median_low(memory.peak_rss for memory in clients.values())
        median = next(memory for memory in clients.values() if memory.peak_rss == middle)
        median_row = _rows([(f"median of {len(clients):,}", median)], fields)
        shown, hidden = shown[:largest], [Gap(len(clients) - largest), *median_row]
    rows = _rows([*([("server", server)] if server.peak_rss else []), *shown], fields)
    title = f"Peak memory (the model is {format_bytes(summary.model.bytes)})"
    return Table(_columns(fields), [*rows, *hidden], title)


def nodes_table(summary: Summary) -> Table:
    """Return the table of nodes; without rows if all processes were on one machine."""
    memory, rows = summary.memory, []
    nodes = memory.nodes or {}
    for node in sorted(nodes, key=natural_key):
        workers = {name: client for name, client in memory.clients.items() if client.node == node}
        largest = max((client.over_idle for client in workers.values()), default=0)
        rows.append(Row([node, nodes[node], largest or None, brief_names(list(workers), 8)]))
    columns = [
        Column("node", "name"),
        Column("all processes (PSS)", "bytes"),
        Column("largest over idle", "bytes", 1),
        Column("workers that it had last", "text", 2),
    ]
    return Table(columns, rows, "Nodes")


def failures_table(summary: Summary, most: int = 5) -> Table:
    """Return the table of failed sites, those that failed most often first."""
    times = Counter(failure.site for failure in summary.failures)
    last = {failure.site: failure for failure in summary.failures}
    fields: Fields[tuple[str, int]] = [
        (Column("site", "name"), lambda row: row[0]),
        (Column("times", "count", 1), lambda row: row[1]),
        (Column("last round", "count", 2), lambda row: last[row[0]].round),
        (Column("reason, the last time", "text"), lambda row: last[row[0]].reason),
    ]
    title = (
        f"Failures ({counted(len(times), 'site')}, {counted(len(summary.failures), 'time')}; "
        "summary.json has each reason)"
    )
    rows = _rows(times.most_common(), fields, "bad")
    return Table(_columns(fields), ends(rows, most, 0, most), title)


def sites_table(sites: Mapping[str, SiteRecord]) -> Table:
    """Return the table of sites: those that failed most, then those that trained longest."""
    whole = sum(site.weight for site in sites.values()) or 1.0
    fields: Fields[SiteRecord] = [
        (Column("site", "name"), lambda site: site.name + " (asked no more)" * site.is_suspended),
        (Column("updates", "count"), lambda site: site.updates),
        (Column("train", "seconds", 1), lambda site: site.trains or None),
        (Column("slowest", "seconds", 2), lambda site: site.slowest or None),
        (Column("download", "seconds", 3), lambda site: site.downloads or None),
        (Column("failures", "count", 1), lambda site: site.failures),
        (Column("weight", "number", 4), lambda site: site.weight),
        (Column("share", "share", 5), lambda site: site.weight / whole),
    ]
    if not any(site.trains for site in sites.values()):
        del fields[2:5]
    in_order = sorted(sites.values(), key=_urgency)
    failed = sum(bool(site.failures) for site in in_order)
    rows = _rows(in_order[:failed], fields, "bad") + _rows(in_order[failed:], fields)
    title = f"{counted(len(sites), 'site')}, of which {failed:,} failed at least once (in seconds)"
    return Table(_columns(fields), ends(rows, 45, 15, 60), title)


def _urgency(site: SiteRecord) -> tuple[bool, int, float, list[tuple[int, str]]]:
    return not site.is_suspended, -site.failures, -site.slowest, natural_key(site.name)


def seconds_table(run: RunRecord, colors: Mapping[str, str]) -> Table:
    """Return the table of a run's seconds by phase.

    Args:
        run: the run.
        colors: colour of each phase in charts.
    """
    rounds = [summary.phases for summary in run.summary.rounds]
    spent = {phase: sum(phases[at] for phases in rounds) for at, phase in enumerate(PHASES)}
    spent["start-up, and between the phases"] = max(run.seconds - sum(spent.values()), 0.0)
    rows = [
        Row([phase, seconds, seconds / (run.seconds or 1.0)], color=colors.get(phase, ""))
        for phase, seconds in spent.items()
    ]
    return Table([Column("", "name"), Column("seconds", "seconds"), Column("share", "share")], rows)


def settings_table(settings: Mapping[str, Setting], *, default: bool) -> Table:
    """Return the settings that have their default, or those that a job sets."""
    rows = [
        Row([key, setting.value, setting.meaning])
        for key, setting in settings.items()
        if setting.is_default == default
    ]
    return Table([Column("key", "name"), Column("value"), Column("meaning", rank=1)], rows)


def differing_table(
    values: Sequence[Mapping[str, str]], labels: Sequence[str], *, same: bool
) -> Table:
    """Return the keys whose values differ between runs, or those that are the same in all.

    Args:
        values: values of each run by key.
        labels: label of each run.
        same: whether to return those that are the same.
    """
    keys = dict.fromkeys(key for run in values for key in run)
    cells = {key: [run.get(key) for run in values] for key in keys}
    rows = [
        Row([key, *(texts[:1] if same else texts)], "" if same else "different")
        for key, texts in cells.items()
        if (len(set(texts)) == 1) == same
    ]
    heads = ["value"] if same else labels
    return Table([Column("key", "name"), *(Column(head) for head in heads)], rows)


def index_table(runs: Sequence[RunRecord], links: Sequence[Link]) -> Table:
    """Return the table of all runs of a folder.

    Args:
        runs: the runs.
        links: name of each run, with the address of its page.
    """
    heads = ("run", "status", "job", "rounds", "sites", "best", "of", "in round", "time")
    return _runs_table(runs, links, [], []).only(heads)


def comparison_table(
    runs: Sequence[RunRecord], labels: Sequence[str], colors: Sequence[str], *, spread: bool
) -> Table:
    """Return the table of runs that are compared.

    Args:
        runs: the runs.
        labels: label of each run.
        colors: colour of each run in charts.
        spread: whether to add the mean and the standard deviation of numbers as rows.
    """
    metrics = metrics_of([run.summary for run in runs])
    table = _runs_table(runs, [Link(label, "") for label in labels], colors, metrics)
    table = table.only(column.head for column in table.columns if column.head not in ("job", "of"))
    return replace(table, rows=[*table.rows, *_spread_rows(table)]) if spread else table


def _runs_table(
    runs: Sequence[RunRecord],
    links: Sequence[Link],
    colors: Sequence[str],
    metrics: Sequence[Metric],
) -> Table:
    rounds = {run.path: list(values_by_round(run.summary).values())[::-1] for run in runs}

    def last(metric: Metric) -> Callable[[RunRecord], float | None]:
        return lambda run: next((row[metric] for row in rounds[run.path] if metric in row), None)

    fields: Fields[RunRecord] = [
        (Column("status", "state"), lambda run: run.status),
        (Column("job", "name", 2), lambda run: run.summary.job),
        (Column("rounds", "count", 1), lambda run: run.summary.rounds_completed),
        (Column("sites", "count", 3), lambda run: run.summary.clients),
        (Column("best", "metric", 1), lambda run: run.summary.best and run.summary.best.value),
        (Column("of", "name", 2), lambda run: run.summary.best and run.summary.best.metric),
        (Column("in round", "count", 2), lambda run: run.summary.best and run.summary.best.round),
        (Column("time", "duration", 1), lambda run: run.seconds or None),
    ]
    fields += [(Column(f"last {metric.title}", "metric", 3), last(metric)) for metric in metrics]
    fields += [
        (
            Column("server over idle", "bytes", 4),
            lambda run: run.summary.memory.server.over_idle or None,
        ),
        (
            Column("largest client over idle", "bytes", 4),
            lambda run: run.summary.memory.largest_client or None,
        ),
        (
            Column("all processes (PSS)", "bytes", 4),
            lambda run: run.summary.memory.peak_total_pss or None,
        ),
        (Column("down", "bytes", 4), lambda run: run.summary.transfer.down.bytes or None),
        (Column("up", "bytes", 4), lambda run: run.summary.transfer.up.bytes or None),
        (Column("model digest", "name", 5), lambda run: run.summary.model.digest[:12] or None),
    ]
    rows = [
        Row([link, *row.cells], color=color)
        for link, row, color in zip(
            links, _rows(runs, fields), colors or [""] * len(runs), strict=True
        )
    ]
    return Table([Column("run", "link"), *_columns(fields)], rows)


def _spread_rows(table: Table) -> list[Row]:
    rows: list[Row] = []
    columns = list(zip(*(row.cells for row in table.rows if isinstance(row, Row)), strict=True))
    for name, fold in (("mean", mean), ("standard deviation", stdev)):
        cells: list[Any] = [Link(name, "")]
        for column, values in zip(table.columns[1:], columns[1:], strict=True):
            is_number = column.kind in ("metric", "bytes", "duration") and None not in values
            value = fold(values) if is_number else None
            cells.append(round(value) if value is not None and column.kind == "bytes" else value)
        rows.append(Row(cells, "best" if name == "mean" else ""))
    return rows


def across_sites_tables(run: RunRecord) -> list[Table]:
    """Return the tables of models scored at each site, and of how the data is split, if any."""
    matrix = run.cross_site
    names = dict.fromkeys(
        name for row in matrix.values() for entry in row.values() for name in entry
    )
    key = run.history.facts.key_metric
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
        Column("site", "name"),
        Column("round", "count"),
        Column("step", "count"),
        Column("key", "name"),
        Column("text", "text"),
    ]
    rows: list[Row | Gap] = [
        Row([text.site or "workflow", text.round, text.step, text.key, clip(text.text or "", 500)])
        for text in logged.texts
    ]
    more = logged.text_count - len(rows)
    return Table(columns, [*rows, Gap(more)] if more else rows)
