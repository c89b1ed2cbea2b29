"""What a run ran on: ``versions.json``, written once it has ended, so that it is known later."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

import flstream
from flstream.simulator.small_files import write_atomically

_PACKAGES = ("torch", "numpy", "safetensors")
_GIB = 1 << 30


def write_versions(run: Path) -> None:
    """Note in a run's folder what this process runs on.

    Raises:
        SimulationError: the disk refused it.
    """
    text = msgspec.json.format(msgspec.json.encode(versions_here()), indent=2).decode()
    write_atomically(run / "versions.json", text)


def read_versions(run: Path) -> Mapping[str, str]:
    """What a run ran on, by name; nothing where that was not kept.

    Raises:
        OSError: it cannot be read.
    """
    try:
        text = (run / "versions.json").read_bytes()
        return msgspec.json.decode(text, type=dict[str, str])
    except (FileNotFoundError, ValueError, RecursionError):
        return {}


def versions_here() -> dict[str, str]:
    """What this process runs on: flstream, Python, the packages that decide bits, the machine."""
    found = {"flstream": flstream.__version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    cores = len(os.sched_getaffinity(0))
    found["system"] = f"{platform.system()} {platform.release()}, {platform.machine()}"
    found["machine"] = f"{cores} cores, {memory:.0f} GiB of memory"
    return found
