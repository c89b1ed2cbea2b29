"""Progress of a bench: a bar on a terminal, a line for each step anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from flstream.bench.schedule import Step, Watcher
from flstream.report.console import is_live
from flstream.report.text import counted, format_left

_FRAMES_PER_SECOND = 4


@contextmanager
def watching_bench(console: Console) -> Iterator[Watcher]:
    """Show the progress of a bench on a console until the end of the block.

    Yields:
        The watcher for :func:`flstream.bench.compare.compare`.
    """
    if not is_live(console):
        yield PlainProgress(console)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        _Left(),
        console=console,
        transient=True,
        expand=True,
        refresh_per_second=_FRAMES_PER_SECOND,
    ) as progress:
        yield BarProgress(progress)


def planned_line(runs: int, seconds: float) -> str:
    """Return the first line: the number of runs, and the predicted seconds of all of them."""
    return f"{counted(runs, 'run')}, about {format_left(seconds)} in all"


class PlainProgress:
    """Watcher that prints a line when a step begins.

    Args:
        console: console to print to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[int, str] | None = None

    def planned(self, runs: int, seconds: float) -> None:
        """Print the number of runs and their predicted time."""
        self._print(planned_line(runs, seconds))

    def stepped(self, step: Step) -> None:
        """Print a step if it differs from the last one."""
        if (step.number, step.text) == self._last:
            return
        self._last = step.number, step.text
        left = "" if step.seconds_left is None else f"; about {format_left(step.seconds_left)} left"
        self._print(f"{_title(step)}{left}")

    def _print(self, line: str) -> None:
        self._console.out(line, highlight=False)


class BarProgress:
    """Watcher that updates a progress bar.

    Args:
        progress: rich's progress display.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=1.0, left=None, updated=0.0)

    def planned(self, runs: int, seconds: float) -> None:
        """Print the number of runs and their predicted time above the bar."""
        self._progress.console.print(Text(planned_line(runs, seconds), style="dim"))

    def stepped(self, step: Step) -> None:
        """Update the bar."""
        self._progress.update(
            self._task,
            description=_title(step),
            completed=step.share,
            left=step.seconds_left,
            updated=time.monotonic(),
        )


class _Left(ProgressColumn):
    """Column with the time left, which counts down between two updates and has a fixed width."""

    def render(self, task: Task) -> Text:
        """Render the time left."""
        left = task.fields["left"]
        if left is None:
            return Text()
        since = time.monotonic() - task.fields["updated"]
        return Text(f"{format_left(max(left - since, 0.0))} left".rjust(12), style="dim")


def _title(step: Step) -> str:
    return f"[{step.number}/{step.runs}] {step.text}" if step.number else step.text
