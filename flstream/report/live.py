"""The live view of a run on a terminal.

Events only change the state; rich draws it at a pace of its own, so a storm of events costs the
run nothing and the picture stays steady.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flstream.report.state import MOVING, WORKING, RunState, SiteProgress
from flstream.report.text import counted, elide, format_metrics, format_rate
from flstream.simulator.launcher import Listener
from flstream.telemetry.events import SERVER, AnyEvent
from flstream.telemetry.memory import MemorySampler
from flstream.units import format_bytes, format_seconds

_FRAMES_PER_SECOND = 8
# Lines that are not sites: the header and its blank line, the heads of the columns, the line for
# the sites left out, a blank line, the footer, and the cursor's own.
_OTHER_LINES = 10
_BAR_WIDTH = 18

_STYLES = {
    "failed": "bold red",
    "downloading": "cyan",
    "uploading": "magenta",
    "training": "yellow",
    "evaluating": "blue",
    "ready": "green",
}
# Who is shown when not everybody can be: failed sites, then those at work, then those that wait.
_URGENCY = ("failed", "uploading", "downloading", "training", "evaluating", "starting", "ready")


@dataclass(frozen=True)
class Memory:
    """Memory now, in bytes.

    Attributes:
        rss: of each process, by name.
        peak_total: the highest sum over all processes so far, shared pages counted once.
    """

    rss: Mapping[str, int] = field(default_factory=dict)
    peak_total: int = 0


@contextmanager
def live_view(console: Console) -> Iterator[Listener]:
    """Draw a run until the block ends, and then make room for its result."""
    state = RunState(began=time.time())
    lock = threading.Lock()
    watched: list[MemorySampler] = []

    def listen(event: AnyEvent, sampler: MemorySampler) -> None:
        with lock:
            state.apply(event)
            watched[:] = [sampler]

    def draw() -> RenderableType:
        with lock:
            memory = Memory()
            if watched:
                memory = Memory(watched[0].current_rss(), watched[0].peak_total_pss)
            return render(state, memory, time.time(), console.width, console.height)

    with Live(
        console=console,
        get_renderable=draw,
        refresh_per_second=_FRAMES_PER_SECOND,
        transient=True,
    ):
        yield listen


def render(state: RunState, memory: Memory, now: float, width: int, height: int) -> RenderableType:
    """One frame: never wider than ``width`` nor taller than ``height``."""
    shown, hidden = choose(list(state.sites.values()), max(height - _OTHER_LINES, 1))
    lines: list[RenderableType] = [*_header(state, now, width)]
    if not shown:
        return Group(*lines)
    lines += [Text(), _sites(shown, state, memory, now, width)]
    if hidden:
        lines.append(Text(f"... and {hidden:,} more", style="dim"))
    return Group(*lines, Text(), *_footer(state, memory, now, width))


def choose(sites: list[SiteProgress], room: int) -> tuple[list[SiteProgress], int]:
    """The sites to show on ``room`` lines, and how many are left out.

    All of them in their order if they fit; else the failed and the busiest first.
    """
    if len(sites) <= room:
        return sites, 0
    urgency = {state: rank for rank, state in enumerate(_URGENCY)}
    by_urgency = sorted(sites, key=lambda site: urgency.get(site.state, len(_URGENCY)))
    return by_urgency[:room], len(sites) - room


def _header(state: RunState, now: float, width: int) -> list[Text]:
    elapsed = format_elapsed(now - state.began)
    if not state.job:
        return [Text.assemble(("flstream", "bold"), f"  {state.phase}  {elapsed}")]
    where = (
        f"round {state.round} of {state.rounds}" if state.round else counted(state.rounds, "round")
    )
    room = width - len(f"  {where}  {state.phase}  {elapsed}")
    title = Text.assemble(
        (elide(state.job, max(room, 8)), "bold"), f"  {where}  ", (state.phase, "bold cyan")
    )
    title.append(f"  {elapsed}", style="dim")
    chunks = f"chunks of {format_bytes(state.chunk_size)}" if state.chunk_size else "in one piece"
    facts = f"{counted(len(state.sites), 'site')}, {state.mode} mode, {chunks}"
    if state.model_bytes:
        tensors = counted(state.tensors, "tensor")
        facts = f"model of {format_bytes(state.model_bytes)} in {tensors}, {facts}"
    return [title, Text(elide(facts, width), style="dim")]


def _sites(
    sites: list[SiteProgress], state: RunState, memory: Memory, now: float, width: int
) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("site", no_wrap=True, max_width=max(width - 65, 8))
    table.add_column("state", no_wrap=True, width=11)
    table.add_column("", no_wrap=True, width=_BAR_WIDTH)
    for name in ("down", "up", "RSS"):
        table.add_column(name, justify="right", no_wrap=True, width=10)
    for site in sites:
        table.add_row(
            Text(elide(site.name, max(width - 65, 8))),
            Text(site.state, style=_STYLES.get(site.state, "dim")),
            _activity(site, state.model_bytes, now),
            _size(site.down),
            _size(site.up),
            _size(memory.rss.get(site.name, 0)),
        )
    return table


def _activity(site: SiteProgress, size: int, now: float) -> RenderableType:
    """A bar for a transfer, a clock for a script at work, nothing for who waits."""
    if site.state in MOVING:
        return ProgressBar(total=max(size, 1), completed=site.moved, width=_BAR_WIDTH)
    if site.state in WORKING:
        return Text(f"for {format_elapsed(now - site.since)}", style="dim")
    return Text()


def _footer(state: RunState, memory: Memory, now: float, width: int) -> list[Text]:
    moved = [
        # A rate keeps its width, so that what follows it stands still.
        f"{name} {format_rate(way.per_second(now)):>12}, {format_bytes(way.total)} in all"
        for name, way in (("down", state.down), ("up", state.up))
    ]
    lines = [
        "   ".join(moved),
        f"memory: server {format_bytes(memory.rss.get(SERVER, 0))} RSS, "
        f"all processes at most {format_bytes(memory.peak_total)} so far",
    ]
    if state.scored:
        after = f"after round {state.scored}: "
        lines.append(after + format_metrics(state.metrics, width - len(after)))
    return [Text(elide(line, width)) for line in lines]


def _size(count: int) -> str:
    return format_bytes(count) if count else "-"


def format_elapsed(seconds: float) -> str:
    """A running clock, with as many digits from one frame to the next."""
    return f"{seconds:.1f} s" if 0 <= seconds < 59.95 else format_seconds(max(seconds, 0.0))
