"""What the fork server imports before it forks: for no other process to import.

Every process of a run is forked from one that has this in memory. So a process is up in
milliseconds, and what they all need is held once.
"""

# What comes before an import here is for the sake of that import.
# ruff: noqa: E402

import gc
import os

# Imports leave next to no garbage: to look for some, again and again, is a quarter of their time.
gc.disable()

# A process group of its own: a Ctrl-C in the terminal reaches the launcher alone, which then stops
# the others in order, wherever each of them is.
if os.getpid() != os.getpgrp():
    os.setpgid(0, 0)

# It was for the fork server itself. What a training script starts finds its modules as ever.
if os.environ.get("PYTHONSAFEPATH") == "flstream":
    del os.environ["PYTHONSAFEPATH"]

import torch

import flstream.simulator.server_process
import flstream.simulator.worker_process
from flstream.simulator.imports import LIBRARIES, import_libraries

import_libraries(os.environ.pop(LIBRARIES, "[]"))

# What is here stays, in every process: to look at it again would cost each of them time, and copies
# of the pages that they share.
gc.freeze()
gc.enable()

__all__ = ["flstream", "torch"]
