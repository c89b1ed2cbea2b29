"""The machine and the versions that figures were measured with."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from flstream import __version__

_PACKAGES = ("torch", "numpy", "safetensors", "xxhash", "psutil")


@dataclass(frozen=True)
class Machine:
    """What was measured on.

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


def this_machine() -> Machine:
    """What this process runs on."""
    uname = platform.uname()
    return Machine(
        system=f"{uname.system} {uname.release} {uname.machine}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=int(psutil.virtual_memory().total),
        versions={
            "flstream": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(names, "").strip()
