"""The run of a point of a sweep without its page, which takes longer to draw than the run."""

import socket
import threading
from contextlib import nullcontext
from pathlib import Path

from flstream.job import Job
from flstream.report import running
from flstream.sweep.point import run_point as run_with_page


def run_point(job: Job, path: Path, has_failed: bool, sweep: socket.socket) -> None:
    """Run a job in a folder, or resume the run in it, and tell the sweep how that ended."""
    running.live_page = lambda _: nullcontext(threading.Event())
    running.leave_page = lambda *_, **__: None
    run_with_page(job, path, has_failed, sweep)
