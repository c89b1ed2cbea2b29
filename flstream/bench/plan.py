"""The plan of a bench: transfer modes, each at some chunk sizes, on the exchange job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from flstream.bench.exchange import ROUNDS, ExchangedModel, Need, link_seconds
from flstream.bench.limits import MachineLimits
from flstream.bench.schedule import START_SECONDS
from flstream.job import Job
from flstream.job.link import NetworkLink
from flstream.units import format_bytes

Mode = Literal["pull", "native", "map", "file"]
MODES: tuple[Mode, ...] = ("pull", "native", "map", "file")
"""Transfer modes. In ``file``, clients pull the model into a file and send the update from it."""

_FILE_CLIENT = Path(__file__).with_name("file_client.py")
# Observed times of a round of each mode, as multiples of the bare pipe's, on machines with few
# cores. They only have to be good enough for the first minute.
_TIMES_PIPE: dict[Mode, float] = {
    "pull": 4.0,
    "native": 13.0,
    "map": 6.0,
    "file": 9.0,
}


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
    def model(self) -> ExchangedModel:
        """The model that a run moves, and between whom."""
        return ExchangedModel(self.model_bytes, self.tensors, self.clients, self.network)

    @property
    def moved_bytes(self) -> int:
        """Bytes that a round moves in one direction: the model, to or from every client."""
        return self.model.moved_bytes

    def label(self, case: Case) -> str:
        """Return a case's name in tables: its mode, and its chunk size if there are several."""
        if case.chunk_size is None or len(self.chunk_sizes) == 1:
            return case.mode
        return f"{case.mode} {format_bytes(case.chunk_size)}"

    def job(self, case: Case) -> Job:
        """Load the exchange job with the settings of a case."""
        is_file = case.mode == "file"
        return self.model.job(
            case.chunk_size,
            f"streaming.mode={'pull' if is_file else case.mode}",
            # Only the last round is measured; older models would just fill the disk.
            "checkpoints.keep=1",
            *([f"train.script={json.dumps(str(_FILE_CLIENT))}"] if is_file else []),
        )

    def need(self, case: Case) -> Need:
        """Predict the memory and disk that a run of a case needs."""
        need = self.model.need(self.job(case))
        if case.mode != "file":
            return need
        # Each client's model is on the disk instead, once, and is changed in place. The process
        # that builds the initial model, before the first round, then takes most memory.
        idle = need.memory - need.server - self.clients * need.client
        client = need.client - self.model_bytes
        return replace(
            need,
            memory=idle + max(need.server + self.clients * client, need.client),
            client=client,
            disk=need.disk + self.moved_bytes,
        )

    def expected_seconds(self, case: Case, limits: MachineLimits) -> float:
        """Predict the seconds of a run of a case from the machine's limits alone."""
        pipe = median(limits.pipe.values())
        linked = sum(link_seconds(self.network, self.model_bytes))
        moved = ROUNDS * (2 * self.moved_bytes * _TIMES_PIPE[case.mode] / pipe + linked)
        # The initial model, and one each round.
        kept = (1 + ROUNDS) * self.model_bytes / limits.disk
        return START_SECONDS + moved + kept
