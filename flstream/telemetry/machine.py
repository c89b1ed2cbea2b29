"""The machine and the software versions of a run."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from flstream import __version__

# Libraries that decide bits or speed. Their metadata is read, since importing them is slow.
_PACKAGES = ("torch", "numpy", "safetensors")
_GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """Machine and software of a process.

    Attributes:
        system: Kernel and architecture.
        processor: Name of the processor; empty where the system does not tell.
        cores: Number of cores that this process may use.
        memory: Bytes of RAM.
        versions: Versions of flstream, Python and the main libraries, by name.
    """

    system: str
    processor: str
    cores: int
    memory: int
    versions: dict[str, str]

    def in_words(self) -> dict[str, str]:
        """Return the same facts as readable text, by label."""
        named = {
            "Python" if name == "python" else name: number for name, number in self.versions.items()
        }
        machine = f"{self.cores} cores, {self.memory / _GIB:.0f} GiB of memory"
        return {**named, "system": self.system, "machine": machine}


def this_machine() -> Machine:
    """Describe the machine and the software of this process."""
    uname, processor = platform.uname(), None
    with suppress(OSError):
        processor = re.search(
            "^model name.*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    versions = {"flstream": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return Machine(
        system=f"{uname.system} {uname.release} {uname.machine}",
        processor=processor[1] if processor else "",
        cores=len(os.sched_getaffinity(0)),
        memory=int(psutil.virtual_memory().total),
        versions=versions,
    )
