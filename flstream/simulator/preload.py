"""What the fork server imports before it forks: for no other process to import.

Every process of a run is forked from one that has this in memory. So a process is up in
milliseconds, and what they all need is held once.
"""

# What comes before an import here is for the sake of that import.
# ruff: noqa: E402

import gc
import json
import os
import sys
from contextlib import suppress

# Imports leave next to no garbage: to look for some, again and again, is a quarter of their time.
gc.disable()

# A process group of its own: a Ctrl-C in the terminal reaches the launcher alone, which then stops
# the others in order, wherever each of them is.
if os.getpid() != os.getpgrp():
    os.setpgid(0, 0)

# It was for the fork server itself. What a training script starts finds its modules as ever.
if os.environ.get("PYTHONSAFEPATH") == "flstream":
    del os.environ["PYTHONSAFEPATH"]

# First what no job has a say in, while the launcher reads the job. All else loads NumPy or torch,
# which look at the variables that the job sets.
import flstream.job
import flstream.telemetry.memory
from flstream.simulator.imports import LIBRARIES, import_libraries
from flstream.simulator.processes import NEEDS

if NEEDS in os.environ:
    line = ""
    with suppress(FileNotFoundError):
        # Where nobody has it open for writing, it is at its end instead of waiting for somebody.
        fd = os.open(os.environ.pop(NEEDS), os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(fd, True)
        with open(fd) as needs:
            line = needs.readline()
    if not line:
        sys.exit()  # the launcher is gone
    os.environ.update(json.loads(line))

import torch

import flstream.simulator.server_process
import flstream.simulator.worker_process

import_libraries(os.environ.pop(LIBRARIES, "[]"))

# What is here stays, in every process: to look at it again would cost each of them time, and copies
# of the pages that they share.
gc.freeze()
gc.enable()

__all__ = ["flstream", "torch"]
