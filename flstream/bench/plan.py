"""The plan of a bench: transfer modes, each at some chunk sizes, on the exchange job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import flstream
from flstream.bench.link_times import link_overrides
from flstream.job import Job, load_job
from flstream.job.link import NetworkLink
from flstream.units import format_bytes

Mode = Literal["pull", "push", "native", "map", "file"]
MODES: tuple[Mode, ...] = ("pull", "push", "native", "map", "file")
"""Transfer modes. In ``file``, clients pull the model into a file and send the update from it."""

EXCHANGE = Path(flstream.__file__).parent / "templates" / "exchange" / "job.conf"
"""Job file of the exchange that is measured."""
_FILE_CLIENT = Path(__file__).with_name("file_client.py")

ROUNDS = 2
"""Rounds of a run. The first one warms up, and the second is measured."""


class Case(NamedTuple):
    """A transfer mode at a chunk size.

    Attributes:
        mode: transfer mode.
        chunk_size: chunk size in bytes; None where the mode has no chunks.
    """

    mode: Mode
    chunk_size: int | None


@dataclass(frozen=True)
class Plan:
    """Parameters of a bench.

    Attributes:
        model_bytes: size of the model in bytes.
        clients: number of clients, each a process.
        modes: transfer modes to compare.
        chunk_sizes: maximum frame sizes in bytes, for the modes that have frames.
        tensors: number of tensors of equal size; None for a mix like a transformer's.
        repeat: number of runs of each case.
        network: emulated link of each client; None for the machine's own pace.
    """

    model_bytes: int
    clients: int
    modes: Sequence[Mode]
    chunk_sizes: Sequence[int]
    tensors: int | None
    repeat: int
    network: NetworkLink | None = None

    @property
    def cases(self) -> list[Case]:
        """All cases: each mode at each chunk size, and native, which has no chunks, once."""
        return [
            Case(mode, size)
            for mode in self.modes
            for size in ([None] if mode == "native" else self.chunk_sizes)
        ]

    @property
    def moved_bytes(self) -> int:
        """Bytes that a round moves in one direction: the model, to or from every client."""
        return self.clients * self.model_bytes

    def label(self, case: Case) -> str:
        """Return a case's name in tables: its mode, and its chunk size if there are several."""
        if case.chunk_size is None or len(self.chunk_sizes) == 1:
            return case.mode
        return f"{case.mode} {format_bytes(case.chunk_size)}"

    def job(self, case: Case) -> Job:
        """Load the exchange job with the settings of a case."""
        overrides = [
            f"rounds={ROUNDS}",
            f"clients.count={self.clients}",
            f"clients.parallel={self.clients}",
            f"model.args.size={self.model_bytes}",
            f"streaming.mode={'pull' if case.mode == 'file' else case.mode}",
            # Only the last round is measured; older models would just fill the disk.
            "checkpoints.keep=1",
            *link_overrides(self.network, self.model_bytes),
        ]
        if case.chunk_size is not None:
            overrides.append(f"streaming.tensor_download_chunk_size={case.chunk_size}")
        if self.tensors is not None:
            overrides.append(f"model.args.tensors={self.tensors}")
        if case.mode == "file":
            overrides.append(f"train.script={json.dumps(str(_FILE_CLIENT))}")
        return load_job(EXCHANGE, overrides)
