"""Named points of a run at which a test halts a process, to kill processes.

Without the environment variable, which only tests set, nothing happens.
"""

from __future__ import annotations

import os
import socket

SOCKET = "FLSTREAM_HALTS"
"""Environment variable with the path of the Unix socket of a test that waits for processes."""
POINTS = {
    "training": "in training code's answer",
    "record": "before the record of an effect",
    "rename": "before a model's file gets its name",
    "fold": "in a fold",
    "evaluation": "in the answer to an evaluation",
    "end": "before the final model gets its second name",
}

_PATH = os.environ.get(SOCKET)


def halt_at(point: str) -> None:
    """Report to the test, if any, that this process is at a point; wait for its reply."""
    if _PATH is None:
        return
    with socket.socket(socket.AF_UNIX) as test:
        if test.connect_ex(_PATH) == 0:  # else the test waits for nobody
            test.sendall(f"{point} {os.getpid()}".encode())
            test.shutdown(socket.SHUT_WR)
            test.recv(1)
