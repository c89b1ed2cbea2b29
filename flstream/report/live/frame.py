"""A frame of the live view of a run, for a terminal of any size."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from flstream.report.live.progress import download_done, seconds_left, task_done
from flstream.report.live.site_state import Memory
from flstream.report.live.site_table import STYLES, site_tables
from flstream.report.live.state import RunState
from flstream.report.live.table import (
    LiveColumn,
    bar,
    columns_that_fit,
    fixed_table,
    lines_of,
    percent,
)
from flstream.report.text import (
    counted,
    elide,
    format_elapsed,
    format_epsilon,
    format_left,
    format_metric,
    format_metrics,
    pieces,
    steady_bytes,
)
from flstream.telemetry.events import SERVER
from flstream.text import printable
from flstream.units import format_bytes

# Lines of a terminal below which only the title, the bars, the sites and the rates are shown.
_ROOMY = 15
_LABEL_WIDTH, _LEAST_NAME = 8, 8
_MOST_BAR, _LEAST_BAR = 140, 6
# Columns of the text beside a bar, which do not change, so that the bar does not move.
_BESIDE_BAR, _BESIDE_WIDE_BAR = 36, 50
# Columns of a terminal from which on there is more text beside a bar.
_WIDE = 100
_LEAST_PAST, _MOST_PAST = 2, 12


def render(state: RunState, memory: Memory, now: float, width: int, height: int) -> Group:
    """Render a frame of the live view.

    Args:
        state: state of the run.
        memory: memory of the run's processes.
        now: current time in seconds since the epoch.
        width: columns of the terminal.
        height: lines of the terminal.

    Returns:
        Texts of a line each and tables, which fit a terminal of at least five lines if texts are
        cropped, not wrapped.
    """
    if not state.job:
        start = Text.assemble(
            ("flstream", "bold"), f"  {state.phase}  {format_elapsed(now - state.began)}"
        )
        if state.awaited is None:
            return Group(start)
        return Group(start, Text(printable(state.awaited.command)))
    roomy = height >= _ROOMY
    top: list[RenderableType] = [_title(state, now, width)]
    if roomy:
        top += [_facts(state, width), Text()]
    top += _bars(state, now, width)
    bottom = _footer(state, memory, now, width)
    bottom = [Text(), *bottom] if roomy else bottom[:1]
    gap = [Text()] if roomy else []
    room = height - lines_of([*top, *gap, *bottom])
    if sites := site_tables(state, memory, now, width, room):
        top += [*gap, *sites]
    top += _past(state, width, height - lines_of([*top, *bottom]))
    return Group(*top, *bottom)


def _title(state: RunState, now: float, width: int) -> Text:
    where = (
        f"round {state.round} of {state.rounds}" if state.round else counted(state.rounds, "round")
    )
    phase = _phase(state, now)
    if phase == "folding" and state.aggregator:
        phase = f"folding at {printable(state.aggregator)}"
    clock = [format_elapsed(now - state.began)]
    left = seconds_left(state, now)
    if left is not None and left >= 1:
        clock.append(f"about {format_left(left)} left")
    job, beside = printable(state.job), len(f"  {where}  {phase}  ")
    times = _fitting(clock, width - beside - min(cell_len(job), _LEAST_NAME))
    name = elide(job, max(width - beside - len(times), _LEAST_NAME))
    title = Text.assemble((name, "bold"), f"  {where}  ", (phase, "bold cyan"))
    # Aligned right, so that it does not move when the phase changes.
    gap = max(width - title.cell_len - len(times), 2)
    return title.append(" " * gap).append(times, "dim")


def _phase(state: RunState, now: float) -> str:
    if state.is_quick:
        return "training"
    return "downloading" if download_done(state, now) is not None else state.phase


def _facts(state: RunState, width: int) -> Text:
    model = []
    if state.model_bytes:
        tensors = f" in {counted(state.tensors, 'tensor')}" if state.tensors else ""
        model = [f"model of {format_bytes(state.model_bytes)}{tensors}"]
    sites = counted(state.count, "site")
    if state.is_shared:
        sites += f" in {counted(len(state.workers), 'process')}"
    facts = [*model, sites, f"{state.mode} mode", pieces(state.chunk_size)]
    return Text(_fitting(facts, width), style="dim")


def _fitting(facts: Sequence[str], width: int) -> str:
    """Join facts, of which the first are the most important; leave out those that do not fit."""
    text, *others = facts
    for fact in others:
        if cell_len(f"{text}, {fact}") > width:
            break
        text += f", {fact}"
    return text


def _bars(state: RunState, now: float, width: int) -> list[RenderableType]:
    """Return the bars of the job's and the current task's progress."""
    over = state.history[-1].number if state.history else max(state.round - 1, 0)
    rounds = [f"{over:,} of {state.rounds:,}"]
    each = state.pace.seconds_a_round
    if each is not None:
        rounds.append(f"{each:.2f} s each" if each < 60 else f"{format_left(each)} each")
    lines = [_bar_line("rounds", over, state.rounds, rounds, "green", width)]
    if state.is_quick:  # a bar would change too fast to be read
        rate = f"{state.tasks.per_second(now):,.0f} answers/s"
        if state.failed:
            rate += f", {len(state.failed):,} failed"
        return [*lines, _labelled("sites", rate)]
    done = download_done(state, now) or task_done(state, now)
    if done is None:
        return [*lines, _labelled("sites", _between_tasks(state))]
    if done.is_bytes:
        label = "fold" if state.phase == "folding" else "down"
        parts = [f"{steady_bytes(done.amount)} of {format_bytes(done.total)}"]
    else:
        label = "sites"
        parts = [f"{done.amount:,} of {done.total:,} done"]
        if state.failed:
            parts.append(f"{len(state.failed):,} failed")
    if done.seconds_left is not None and done.seconds_left >= 1:
        parts.append(f"{format_left(done.seconds_left)} left")
    if not done.is_bytes and state.is_shared:
        parts.append(_each_second(done.amount / max(now - state.task_began, 1.0)))
    style = STYLES.get(_phase(state, now), "magenta")
    return [*lines, _bar_line(label, done.amount, done.total, parts, style, width)]


def _between_tasks(state: RunState) -> str:
    if not state.round:
        return (
            f"{len(state.started)} of {counted(len(state.workers or state.sites), 'process')} ready"
        )
    failed = f", {len(state.failed):,} failed" if state.failed else ""
    return f"{state.over:,} of {state.asked:,} done{failed}"


def _each_second(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def _bar_line(
    label: str, done: int, total: int, facts: Sequence[str], style: str, width: int
) -> RenderableType:
    beside = min(_BESIDE_BAR if width < _WIDE else _BESIDE_WIDE_BAR, width - _LABEL_WIDTH)
    columns = columns_that_fit(
        [
            LiveColumn("label", "", _LABEL_WIDTH - 1, 0, is_number=False),
            LiveColumn("bar", "", _LEAST_BAR, 3, is_number=False, most=_MOST_BAR),
            LiveColumn("percent", "", 4, 2),
            LiveColumn("facts", "", beside, 1, is_number=False),
        ],
        width,
    )
    row: dict[str, RenderableType] = {
        "label": Text(label, style="dim"),
        "bar": bar(done, total, style),
        "percent": percent(done, total),
        "facts": f" {_fitting(facts, beside - 1)}",
    }
    return fixed_table(columns, [row], has_head=False)


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((label.ljust(_LABEL_WIDTH), "dim"), text)


def _footer(state: RunState, memory: Memory, now: float, width: int) -> list[Text]:
    # A rate has a fixed width, so that the text after it does not move.
    moved = [
        f"{steady_bytes(round(way.per_second(now)))}/s".rjust(12)
        + f", {steady_bytes(way.total)} in all"
        for way in (state.down, state.up)
    ]
    room = width - _LABEL_WIDTH
    held = [
        f"server {steady_bytes(memory.rss.get(SERVER, 0))} RSS",
        f"all processes at most {steady_bytes(memory.peak_total)} so far",
    ]
    lines = [
        Text.assemble(
            ("down".ljust(_LABEL_WIDTH), "dim"), moved[0].ljust(34), ("up", "dim"), f"  {moved[1]}"
        ),
        _labelled("memory", _fitting(held, room)),
    ]
    down, up = state.totals.down.reused, state.totals.up.reused
    if down or up:
        saved = f"{format_bytes(down)} down, {format_bytes(up)} up"
        lines.append(_labelled("saved", _fitting([saved, "which receivers had"], room)))
    if state.scored is not None:
        after = f"after round {state.scored}: "
        scores = format_metrics(state.metrics, max(room - len(after), 1))
        lines.append(_labelled("scores", f"{after}{scores}"))
    return lines


def _past(state: RunState, width: int, room: int) -> list[RenderableType]:
    """Return the table of the last completed rounds, if there is room for it."""
    count = min(room - 2, len(state.history), _MOST_PAST)
    if count < 1 or room - 2 < _LEAST_PAST:
        return []
    shown = state.history[-count:]
    names = dict.fromkeys(("score", name) for each in shown for name in each.scores or ())
    names |= dict.fromkeys(("train", name) for each in shown for name in each.trained)
    columns = [
        LiveColumn("round", "round", 7, 0, is_number=False),
        LiveColumn("seconds", "seconds", 8, 1),
        LiveColumn("download", "download", 8, 3),
        LiveColumn("train", "train", 8, 3),
        LiveColumn("fold", "up+fold", 8, 3),
        LiveColumn("checkpoint", "checkpoint", 10, 6),
        LiveColumn("evaluate", "evaluate", 8, 5),
    ]
    first = dict(reversed(names))
    for kind, name in names:
        head = elide(printable(f"train {name}" if kind == "train" else name), 12)
        rank = 7 if name != first[kind] else 2 if kind == "score" else 4
        columns.append(LiveColumn(f"{kind} {name}", head, max(cell_len(head), 9), rank))
    if any(each.privacy for each in shown):
        columns.append(LiveColumn("epsilon", "epsilon", 9, 2))
    rows = []
    for each in shown:
        seconds = (each.download, each.train, each.upload_and_fold, each.checkpoint)
        cells: dict[str, RenderableType] = dict(
            zip(("download", "train", "fold", "checkpoint"), map(_two, seconds), strict=True)
        )
        cells |= {"round": str(each.number), "seconds": _two(each.seconds)}
        cells["evaluate"] = _two(each.evaluate) if each.evaluate else "-"
        cells["epsilon"] = format_epsilon(each.privacy)
        for kind, name in names:
            known = each.scores or {} if kind == "score" else each.trained
            cells[f"{kind} {name}"] = format_metric(known.get(name))
        rows.append(cells)
    return [Text(), fixed_table(columns_that_fit(columns, width), rows)]


def _two(seconds: float) -> str:
    return f"{seconds:.2f}"
