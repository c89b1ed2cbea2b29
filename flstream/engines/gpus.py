"""The GPUs of a machine, dealt out whole to its workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from flstream.errors import WorkerLostError

_DRIVER = Path("/proc/driver/nvidia/gpus")


def visible_gpus(environment: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES lists them.

    Args:
        environment: Environment variables. CUDA_VISIBLE_DEVICES has what a scheduler has granted;
            as for CUDA, what follows a number below 0 is not visible.
        driver: Folder in which the driver has a folder for each GPU of the machine.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(place) for place, _ in enumerate(driver.glob("*"))]
    gpus: list[str] = []
    for gpu in map(str.strip, listed.split(",")):
        if not gpu or gpu.startswith("-"):
            break
        gpus.append(gpu)
    return gpus


class GpuDealer:
    """Distribution of GPUs to workers by name, each until it gives them back.

    Args:
        gpus: The GPUs of the machine.
        per_worker: GPUs of each worker; None leaves them as they are, so that all see all.
    """

    def __init__(self, gpus: list[str], per_worker: int | None) -> None:
        self._free = list(gpus)
        self._count = len(gpus)
        self._per_worker = per_worker
        self._dealt: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    @property
    def room(self) -> int | None:
        """Number of workers that can have GPUs; None for any number."""
        return self._count // self._per_worker if self._per_worker else None

    def deal(self, worker: str) -> str | None:
        """Return the CUDA_VISIBLE_DEVICES of a worker; None to leave it as it is.

        Raises:
            WorkerLostError: All GPUs are taken by others.
        """
        if self._per_worker is None:
            return None
        with self._lock:
            if worker not in self._dealt:
                if len(self._free) < self._per_worker:
                    raise WorkerLostError(
                        f"a worker takes {self._per_worker} GPUs (engine.gpus), and "
                        f"{len(self._free)} of {self._count} are free; set clients.parallel to "
                        "fewer workers"
                    )
                self._dealt[worker] = [self._free.pop(0) for _ in range(self._per_worker)]
            return ",".join(self._dealt[worker])

    def give_back(self, worker: str) -> None:
        """Take back the GPUs of a worker that has ended."""
        with self._lock:
            self._free += self._dealt.pop(worker, [])
