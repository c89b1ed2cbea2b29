"""The machine and the software versions of a run."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from flstream import __version__

# Libraries that decide bits or speed. Their metadata is read, since importing them is slow.
_PACKAGES = ("torch", "numpy", "safetensors")
_GIB = 1 << 30


def versions() -> dict[str, str]:
    """Return the versions of flstream, Python and the main libraries, by name."""
    numbers = {"flstream": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


def processor_name() -> str:
    """Return the name of the processor; empty where the system does not tell."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if match := re.search("^model name.*: (.+)$", text, re.MULTILINE):
            return match[1]
    return ""


def machine_facts() -> dict[str, str]:
    """Describe the machine and the software of this process, by label."""
    uname, cores = platform.uname(), len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / _GIB
    return {
        **versions(),
        "system": f"{uname.system} {uname.release} {uname.machine}",
        "machine": f"{cores} cores, {memory:.0f} GiB of memory",
    }
