"""The run of a point of a sweep without its page, which takes longer to draw than the run."""

import socket
from pathlib import Path

from flstream.job import Job
from flstream.report import running
from flstream.sweep.point import run_point as run_with_page
from flstream.sweep.record import PointRecord


def run_point(job: Job, path: Path, record: PointRecord, sweep: socket.socket) -> None:
    """Run a job in a folder, or resume the run in it, and send the sweep its record."""
    running.leave_page = lambda *_, **__: None
    run_with_page(job, path, record, sweep)
