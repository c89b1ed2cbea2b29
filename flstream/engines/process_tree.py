"""Processes that a process has started, such as training code's pools and loaders."""

from __future__ import annotations

from contextlib import suppress

import psutil


def kill_descendants(pid: int) -> None:
    """Kill the children of a process, and theirs, with SIGKILL; the process itself is left.

    Args:
        pid: Number of the process. What has left its tree, as daemons do, is not found.
    """
    with suppress(psutil.Error):
        for each in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                each.kill()
