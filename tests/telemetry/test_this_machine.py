"""The description of the machine and of the software versions."""

import os
import sys

import flstream
from flstream.telemetry.machine import Machine, this_machine


def test_the_machine_and_the_versions_are_those_of_this_process_and_are_told_in_words():
    machine = this_machine()
    assert machine.versions["flstream"] == flstream.__version__
    assert machine.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "safetensors"} <= machine.versions.keys()
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory > 1 << 20
    told = Machine("Linux 6 x86_64", "CPU", 2, 8_300_000_000, {"python": "3.11.7", "torch": "2.6"})
    assert told.in_words() == {
        "Python": "3.11.7",
        "torch": "2.6",
        "system": "Linux 6 x86_64",
        "machine": "2 cores, 8 GiB of memory",
    }
