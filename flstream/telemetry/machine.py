"""The machine and the versions that something ran on."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from flstream import __version__

# Those that decide bits, or how long it takes. Asked of their metadata, as importing takes a while.
_PACKAGES = ("torch", "numpy", "safetensors")
_GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """What something ran on.

    Attributes:
        system: kernel and architecture.
        processor: its name, where the system tells.
        cores: that this process may use.
        memory: bytes of RAM.
        versions: of flstream, Python and what does the work, by name.
    """

    system: str
    processor: str
    cores: int
    memory: int
    versions: dict[str, str]

    def in_words(self) -> dict[str, str]:
        """The same for people, by name."""
        named = {
            "Python" if name == "python" else name: number for name, number in self.versions.items()
        }
        machine = f"{self.cores} cores, {self.memory / _GIB:.0f} GiB of memory"
        return {**named, "system": self.system, "machine": machine}


def this_machine() -> Machine:
    """What this process runs on."""
    uname = platform.uname()
    return Machine(
        system=f"{uname.system} {uname.release} {uname.machine}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=int(psutil.virtual_memory().total),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {"flstream": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(names, "").strip()
