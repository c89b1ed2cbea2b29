"""Imports of the fork server before it forks. No other process may import this module.

Every process of a run is forked from one that has these modules in memory. So a process starts in
milliseconds, and the memory of the modules is shared.
"""

# The statements between the imports must run before the imports below them.
# ruff: noqa: E402

import gc
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

# Imports leave next to no garbage, and collecting it would be a quarter of their time.
gc.disable()

# A process group of its own: a Ctrl-C in the terminal reaches the launcher alone, which then stops
# the others in order, wherever each of them is.
if os.getpid() != os.getpgrp():
    os.setpgid(0, 0)
# Which the launcher has blocked until now. One that came before is the launcher's: to ignore the
# signal discards it.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

# Only the fork server itself needs it; processes that a training script starts must not have it.
if os.environ.get("PYTHONSAFEPATH") == "flstream":
    del os.environ["PYTHONSAFEPATH"]

# First the imports that do not depend on the job, while the launcher reads the job. All others load
# NumPy or torch, which read environment variables that the job sets.
import flstream.job
import flstream.telemetry.memory
from flstream.engines.fork_server import PRELOAD, SOURCE
from flstream.engines.imports import (
    import_libraries,
    library_imports,
    preload_libraries,
    preloaded_imports,
)
from flstream.engines.processes import NEEDS
from flstream.engines.sockets_folder import FOLDER, remove_with_this_process

if FOLDER in os.environ:
    remove_with_this_process(os.environ.pop(FOLDER))

if NEEDS in os.environ:
    line = ""
    with suppress(FileNotFoundError):
        # Opened without blocking: if the launcher is gone, this reads an end of file.
        fd = os.open(os.environ.pop(NEEDS), os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(fd, True)
        with open(fd) as needs:
            line = needs.readline()
    if not line:
        sys.exit()  # the launcher is gone
    os.environ.update(json.loads(line))

import torch

import flstream.simulation.model_builder
import flstream.simulation.server_process
import flstream.simulation.worker_process

source = Path(path) if (path := os.environ.pop(SOURCE, "")) else None
libraries = [name for name in os.environ.pop(PRELOAD, "").split(",") if name]
import_libraries(library_imports(source))
preload_libraries(preloaded_imports(source, libraries))

# All objects so far are exempt from garbage collection: traversing them would cost every process
# time, and copies of the pages that the processes share.
gc.freeze()
gc.enable()

__all__ = ["flstream", "torch"]
