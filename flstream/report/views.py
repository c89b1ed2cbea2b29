"""Tables of runs, built once each from their records for the terminal, the page and notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, median_low, stdev
from typing import Any, NamedTuple

from flstream.report.metrics import Metric, metrics_of, values_by_round
from flstream.report.run_record import LoggedValues, RunRecord, Setting
from flstream.report.table import Column, Gap, Link, Row, Shade, Table, ends
from flstream.report.text import clip, counted, format_epsilon, pieces
from flstream.runs.round_record import PHASES
from flstream.runs.site_record import SiteRecord
from flstream.runs.summary import Summary
from flstream.telemetry.events import PrivacySpent, Transfer
from flstream.telemetry.memory import ProcessMemory
from flstream.text import natural_key, printable
from flstream.units import format_bytes

# Workers of a node and sites that are named, and labels or models that have a column.
_MOST_NAMED, _MOST_COLUMNS = 8, 60
# The names that NVFlare's readers look for say little to people.
_OWNERS = {"SRV_FL_global_model.pt": "final model", "SRV_best_FL_global_model.pt": "best model"}
_COSTS = ("server over idle", "largest client over idle", "all processes (PSS)", "down", "up")
# The first metric and the seconds of a round stay longest on a narrow terminal.
_RANKS = {"train": 3, "download": 3, "upload and fold": 3, "evaluate": 4, "checkpoint": 5}
_SHORT = {"upload and fold": "up+fold"}


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


def round_rows(summary: Summary) -> list[RoundRow]:
    """Return the rounds of a run; before them the initial model where it was scored."""
    metrics = values_by_round(summary)
    rows = [RoundRow(0, metrics[0])] if 0 in metrics else []
    return rows + [
        RoundRow(r.round, metrics.get(r.round, {}), r.phases, r.privacy, r.aggregator)
        for r in summary.rounds
    ]


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
    is_private = any(row.privacy for row in rounds)
    privacy = [Column("epsilon", "name", 1), Column("clipping norm", "number", 6)]
    privacy.append(Column("clipped", "share", 6))
    has_folder = any(row.aggregator for row in rounds)
    columns = [
        Column("round", "count"),
        *(Column(metric.title, "metric", 6 * bool(n)) for n, metric in enumerate(metrics)),
        *(privacy if is_private else []),
        *(Column(_SHORT.get(phase, phase), "seconds", _RANKS[phase]) for phase in PHASES),
        *([Column("folded at", "name", 5)] if has_folder else []),
    ]
    rows = []
    for row in rounds:
        cells: list[Any] = [row.number, *map(row.metrics.get, metrics)]
        if is_private:
            spent = row.privacy
            cells += [spent and format_epsilon(spent), spent and spent.clip_norm]
            cells.append(spent and spent.clipped)
        phases: list[float | None] = [*row.phases] or [None] * len(PHASES)
        cells += [*phases[:-1], phases[-1] or None]  # zero: a round without an evaluation
        cells += [row.aggregator or "server"] if has_folder else []
        rows.append(Row(cells, "best" if row.number == best else ""))
    title = "Rounds (in seconds)"
    return Table(columns, ends(rows, most // 4, most * 3 // 5, most), title)


def rounds_of(summary: Summary, most: int = 20) -> Table:
    """Return the table of a summary's rounds."""
    best = summary.best.round if summary.best else None
    return rounds_table(round_rows(summary), metrics_of([summary]), best, most)


def transfer_table(summary: Summary) -> Table:
    """Return the table of transfers in each direction; without rows if nothing moved."""
    transfer = summary.transfer
    reuses = transfer.down.reused or transfer.up.reused
    columns = [
        Column("", "name"),
        Column("bytes", "bytes"),
        *([Column("not sent", "bytes", 1)] if reuses else []),
        Column("requests", "count", 2),
        Column("chunks", "count", 4),
        Column("retries", "count", 3),
        Column("seconds", "seconds", 1),
        Column("rate", "rate", 1),
    ]

    def row(name: str, way: Transfer) -> Row:
        saved = [way.reused] if reuses else []
        rate = way.bytes / way.seconds if way.seconds else None
        return Row(
            [name, way.bytes, *saved, way.requests, way.chunks, way.retries, way.seconds, rate]
        )

    rows = [row("down", transfer.down), row("up", transfer.up)]
    title = f"Transfer ({transfer.mode} mode, {pieces(transfer.chunk_size)})"
    return Table(columns, rows if transfer.down.requests else [], title)


def memory_table(summary: Summary, most: int = 16, largest: int = 3) -> Table:
    """Return the table of processes' memory: of many clients, the largest and the median one.

    Args:
        summary: summary of the run.
        most: number of clients up to which all are shown.
        largest: clients to show where there are more.
    """
    clients = summary.memory.clients
    has_nodes = any(isinstance(memory.node, str) for memory in clients.values())
    heads = [("idle RSS", 2), ("peak RSS", 1), ("over idle", 0), ("peak USS", 3)]
    columns = [Column("process", "name"), *(Column(head, "bytes", n) for head, n in heads)]
    columns += [Column("node", "name", 2)] if has_nodes else []

    def row(name: str, memory: ProcessMemory) -> Row:
        sizes = (memory.idle_rss, memory.peak_rss, memory.over_idle, memory.peak_uss)
        # Zero stands for no measurement: the process ended before it.
        node = memory.node if isinstance(memory.node, str) else None
        return Row([name, *(size or None for size in sizes), *([node] if has_nodes else [])])

    server = summary.memory.server
    rows: list[Row | Gap] = [row("server", server)] if server.peak_rss else []
    if len(clients) <= most:
        rows += [row(name, memory) for name, memory in clients.items()]
    else:
        by_peak = sorted(clients, key=lambda name: -clients[name].peak_rss)
        rows += [row(name, clients[name]) for name in by_peak[:largest]]
        middle = median_low(memory.peak_rss for memory in clients.values())
        median = next(memory for memory in clients.values() if memory.peak_rss == middle)
        rows += [Gap(len(clients) - largest), row(f"median of {len(clients):,}", median)]
    title = f"Peak memory (the model is {format_bytes(summary.model.bytes)})"
    return Table(columns, rows, title)


def nodes_table(summary: Summary) -> Table:
    """Return the table of nodes; without rows if all processes were on one machine."""
    memory, rows = summary.memory, []
    for node in sorted(memory.nodes or {}, key=natural_key):
        workers = [name for name, client in memory.clients.items() if client.node == node]
        largest = max((memory.clients[name].over_idle for name in workers), default=0)
        rows.append(Row([node, memory.nodes[node], largest or None, named(workers)]))  # type: ignore[index]
    columns = [
        Column("node", "name"),
        Column("all processes (PSS)", "bytes"),
        Column("largest over idle", "bytes", 1),
        Column("workers that it had last", "text", 2),
    ]
    return Table(columns, rows, "Nodes")


def named(names: Sequence[str]) -> str:
    """Return some names in a sentence: ``a, b and 3 more``."""
    more = len(names) - _MOST_NAMED
    text = ", ".join(map(printable, names[:_MOST_NAMED]))
    return f"{text} and {more:,} more" if more > 0 else text


def failures_table(summary: Summary, most: int = 5) -> Table:
    """Return the table of failed sites, those that failed most often first."""
    times = Counter(failure.site for failure in summary.failures)
    last = {failure.site: failure for failure in summary.failures}
    rows = [
        Row([site, count, last[site].round, last[site].reason], "bad")
        for site, count in times.most_common()
    ]
    columns = [
        Column("site", "name"),
        Column("times", "count", 1),
        Column("last round", "count", 2),
        Column("reason, the last time", "text"),
    ]
    title = (
        f"Failures ({counted(len(times), 'site')}, {counted(len(summary.failures), 'time')}; "
        "summary.json has each reason)"
    )
    return Table(columns, ends(rows, most, 0, most, ""), title)


def sites_table(sites: Mapping[str, SiteRecord], most: int = 60) -> Table:
    """Return the table of sites: those that failed most, then those that trained longest."""
    whole = sum(site.weight for site in sites.values()) or 1.0
    is_timed = any(site.trains for site in sites.values())
    columns = [
        Column("site", "name"),
        Column("updates", "count"),
        *([Column("train", "seconds", 1)] if is_timed else []),
        *([Column("slowest", "seconds", 2)] if is_timed else []),
        *([Column("download", "seconds", 3)] if is_timed else []),
        Column("failures", "count", 1),
        Column("weight", "number", 4),
        Column("share", "share", 5),
    ]
    rows = []
    for site in sorted(sites.values(), key=_urgency):
        times = [site.trains, site.slowest, site.downloads] if is_timed else []
        cells = [site.updates, *(seconds or None for seconds in times), site.failures]
        name = site.name + (" (asked no more)" if site.is_suspended else "")
        mark = "bad" if site.failures else ""
        rows.append(Row([name, *cells, site.weight, site.weight / whole], mark))  # type: ignore[arg-type]
    count, failed = counted(len(sites), "site"), sum(bool(site.failures) for site in sites.values())
    title = f"{count}, of which {failed:,} failed at least once (in seconds)"
    return Table(columns, ends(rows, most * 3 // 4, most // 4, most, ""), title)


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
    rest = max(run.seconds - sum(spent.values()), 0.0)
    whole = run.seconds or 1.0
    spent["start-up, and between the phases"] = rest
    rows = [
        Row([phase, seconds, seconds / whole], color=colors.get(phase, ""))
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
    shown = ["value"] if same else labels
    return Table([Column("key", "name"), *(Column(label, "text") for label in shown)], rows)


def runs_table(
    runs: Sequence[RunRecord], links: Sequence[Link], colors: Sequence[str] = ()
) -> Table:
    """Return the table of several runs, a row each.

    Args:
        runs: the runs.
        links: name of each run, with the address of its page.
        colors: colours of the runs in charts, for a comparison, which has metrics, memory and bytes
            where an index has the job's name.
    """
    metrics = metrics_of([run.summary for run in runs]) if colors else []
    columns = [
        Column("run", "link"),
        Column("status", "state"),
        Column("job", "name", 2),
        Column("rounds", "count", 1),
        Column("sites", "count", 3),
        Column("best", "metric", 1),
        Column("of", "name", 2),
        Column("in round", "count", 2),
        Column("time", "duration", 1),
        *(Column(f"last {metric.title}", "metric", 3) for metric in metrics),
        *(Column(head, "bytes", 4) for head in _COSTS),
        Column("model digest", "name", 5),
    ]
    rows = []
    for index, (run, link) in enumerate(zip(runs, links, strict=True)):
        summary, best = run.summary, run.summary.best
        cells: list[Any] = [link, run.status, summary.job, summary.rounds_completed]
        cells += [summary.clients, best and best.value, best and best.metric, best and best.round]
        by_round = list(values_by_round(summary).values())
        last = [next((row[m] for row in reversed(by_round) if m in row), None) for m in metrics]
        memory, transfer = summary.memory, summary.transfer
        largest = max((client.over_idle for client in memory.clients.values()), default=0)
        sizes = [memory.server.over_idle, largest, memory.peak_total_pss]
        sizes += [transfer.down.bytes, transfer.up.bytes]
        cells += [run.seconds or None, *last, *(size or None for size in sizes)]
        cells.append(summary.model.digest[:12] or None)
        rows.append(Row(cells, color=colors[index] if colors else ""))
    skipped = ("job", "of") if colors else (*_COSTS, "model digest")
    places = [at for at, column in enumerate(columns) if column.head not in skipped]
    rows = [row._replace(cells=[row.cells[at] for at in places]) for row in rows]
    return Table([columns[at] for at in places], rows)


def with_spread(table: Table) -> Table:
    """Return a table of runs with the mean and the standard deviation of its numbers as rows."""
    rows = [row for row in table.rows if isinstance(row, Row)]
    more = []
    for name, fold in (("mean", mean), ("standard deviation", stdev)):
        cells: list[Any] = [Link(name, "")]
        for at, column in enumerate(table.columns[1:], 1):
            values = [row.cells[at] for row in rows]
            known = column.kind in ("metric", "bytes", "duration") and None not in values
            value = fold(values) if known else None
            cells.append(round(value) if value is not None and column.kind == "bytes" else value)
        more.append(Row(cells, "best" if name == "mean" else ""))
    return replace(table, rows=[*rows, *more])


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
    columns = dict.fromkeys(column for row in values.values() for column in row)
    shown = sorted(columns, key=natural_key)[:_MOST_COLUMNS]
    title += f" ({len(shown)} of {len(columns):,})" * (len(columns) > len(shown))
    rows = [
        Row([name, *(v if v is None else Shade(v, (v - low) / span) for v in map(row.get, shown))])
        for name, row in values.items()
    ]
    heads = [Column("site", "name"), *(Column(name, "shade", 1) for name in shown)]
    return Table(heads, ends(rows, 30, 10, 40, ""), title)


def texts_table(logged: LoggedValues) -> Table:
    """Return the table of the last logged texts, the newest first."""
    columns = [
        Column("site", "name"),
        Column("round", "count"),
        Column("step", "count"),
        Column("key", "name"),
        Column("text", "text"),
    ]
    rows = [
        Row([text.site or "workflow", text.round, text.step, text.key, clip(text.text or "", 500)])
        for text in logged.texts
    ]
    more = logged.text_count - len(rows)
    return Table(columns, [*rows, *([Gap(more)] if more else [])])
