"""Make the picture of a run in progress that the README shows, from a run on this machine.

    python benchmarks/pictures.py [--model-size 1GiB] [--clients 4] [--width 100]

It takes memory for as many models as there are clients.
"""

from __future__ import annotations

import argparse
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console, Group

from flstream.job import load_job
from flstream.report.live.frame import LiveMemory, render
from flstream.report.live.run_state import LiveRun
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.launcher import simulate
from flstream.telemetry.events import AnyEvent, RunStarted
from flstream.telemetry.memory import MemorySampler

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "live.svg"
# Fonts of common systems, so that the picture needs none from the network.
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Share of the last round's download at which the picture is taken, and the picture's lines.
PART, LINES = 0.45, 24


class Photographer:
    """Listener of a run that keeps one frame of the live view.

    Args:
        width: columns of the frame.

    Attributes:
        frame: the frame; None until it is taken.
    """

    def __init__(self, width: int) -> None:
        self._run = LiveRun(0.0)
        self._width = width
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
        if is_begun and sum(moving) >= PART * self._run.model_bytes * len(moving):
            memory = LiveMemory(sampler.current_rss(), sampler.peaks(), sampler.peak_total_pss)
            self.frame = render(self._run, memory, event.time, self._width, LINES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model-size", default="1GiB")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--width", type=int, default=100)
    asked = parser.parse_args()
    overrides = [f"model.args.size={asked.model_size}", f"clients.count={asked.clients}"]
    job = load_job(ROOT / "jobs" / "exchange" / "job.conf", overrides)
    photographer = Photographer(asked.width)
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(job, RunDirectory.create(job.name, Path(folder)), photographer)
    if summary.status != "finished" or photographer.frame is None:
        raise SystemExit(f"there is no picture: the run {summary.status}, {summary.error}")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(photographer.frame, asked.width))


def svg(frame: Group, width: int) -> str:
    """Convert a frame to a self-contained SVG file."""
    console = Console(
        file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor", width=width
    )
    console.print(frame, no_wrap=True, overflow="crop")
    picture = console.export_svg(title="flstream simulate jobs/exchange", unique_id="live")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r"<!--.*?-->\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code, monospace", FONTS).replace("arial", "sans-serif")
    return "\n".join(line.rstrip() for line in picture.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    main()
