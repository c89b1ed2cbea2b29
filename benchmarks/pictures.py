"""Make the picture of a run in progress that the README shows, from a run on this machine.

    python benchmarks/pictures.py [1GiB]

It takes memory for four models.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console, Group
from running import JOBS

from flstream.job import load_job
from flstream.report.live.frame import LiveMemory, render
from flstream.report.live.run_state import LiveRun
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.launcher import simulate
from flstream.telemetry.events import AnyEvent, RunStarted
from flstream.telemetry.memory import MemorySampler

PICTURE = JOBS.parent / "docs" / "pictures" / "live.svg"
# Fonts of common systems, so that the picture needs none from the network.
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Share of the last round's download at which the picture is taken, and the picture's size.
PART, WIDTH, LINES = 0.45, 100, 24


class Photographer:
    """Listener of a run that keeps one frame of the live view; None until it is taken."""

    def __init__(self) -> None:
        self._run = LiveRun(0.0)
        self.frame: Group | None = None

    def __call__(self, event: AnyEvent, sampler: MemorySampler) -> None:
        """Handle an event, and take the frame if it is time for it."""
        if isinstance(event, RunStarted):
            self._run.began = event.time
        self._run.apply(event)
        start = self._run.start
        if self.frame or start is None or self._run.round < start.rounds:
            return
        moving = [work.moved for work in self._run.now.workers if work.state == "downloading"]
        is_begun = len(moving) > len(self._run.names) // 2
        if is_begun and sum(moving) >= PART * self._run.history.model_bytes * len(moving):
            memory = LiveMemory(sampler.current_rss(), sampler.peaks(), sampler.peak_total_pss)
            self.frame = render(self._run, memory, event.time, WIDTH, LINES)


def main(size: str) -> None:
    """Run the exchange of a model, and write the picture."""
    job = load_job(JOBS / "exchange" / "job.conf", [f"model.args.size={size}", "clients.count=4"])
    photographer = Photographer()
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(job, RunDirectory.create(job.name, Path(folder)), photographer)
    if photographer.frame is None:
        raise SystemExit(f"there is no picture: the run {summary.status}, {summary.error}")
    console = Console(file=io.StringIO(), record=True, force_terminal=True, width=WIDTH)
    console.print(photographer.frame, no_wrap=True, overflow="crop")
    picture = console.export_svg(title="flstream simulate jobs/exchange", unique_id="live")
    picture = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code, monospace", FONTS).replace("arial", "sans-serif")
    lines = [line.rstrip() for line in picture.splitlines() if line.strip()]
    PICTURE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "1GiB")
