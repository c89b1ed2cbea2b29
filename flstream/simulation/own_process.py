"""Main function of a process that a workflow starts for itself."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from flstream.debugging import code_failed
from flstream.errors import StreamingError
from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output
from flstream.simulation.places import this_place


def main(target: str, args: Sequence[Any], log: Path, server: socket.socket) -> None:
    """Run the process: call the function of a socket and these arguments, and end."""
    ignore_interrupts()
    redirect_output(log)
    end_with_peer(server)
    with suppress(StreamingError):  # the run is over
        try:
            resolve_name(target)(server, *args)
        except Exception as error:
            code_failed(error)
    if this_place() is None:
        sys.stdout.flush()
        os._exit(0)  # threads of the user's code may never end
