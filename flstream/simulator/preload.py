"""What the fork server imports before it forks: for no other process to import.

Every process of a run is forked from one that has this in memory. So a process is up in
milliseconds, and what they all need is held once.
"""

import os

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

__all__ = ["flstream", "torch"]
