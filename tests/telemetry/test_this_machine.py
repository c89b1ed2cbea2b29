"""The description of the machine and of the software versions."""

import os
import re
import sys

import flstream
from flstream.telemetry.machine import machine_facts


def test_the_machine_and_the_versions_are_those_of_this_process():
    facts = machine_facts()
    assert facts["flstream"] == flstream.__version__
    assert facts["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "safetensors"} <= facts.keys()
    assert re.fullmatch(
        rf"{len(os.sched_getaffinity(0))} cores, \d+ GiB of memory", facts["machine"]
    )
    assert facts["system"].startswith("Linux ")
