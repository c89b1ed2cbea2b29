"""The plan of a bench of codecs: lists of codecs, over links, on a model that is short enough."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flstream.bench.codec_cases import CodecCase
from flstream.bench.exchange import ROUNDS, ExchangedModel, LinkSeconds, Need, link_seconds
from flstream.job import Job
from flstream.job.link import NetworkLink

_MODEL = "flstream.bench.model_like:build"
_CLIENT = Path(__file__).with_name("model_like.py")

MOST_SECONDS = 20.0
"""Seconds that a model goes over its link at most, unless the whole of it is asked for."""

_LEAST_BYTES = 1 << 20
# Time of a run for its processes, and for building, changing and folding a short model.
_START_SECONDS = 5.0


def shortened(model_bytes: int, link: NetworkLink | None) -> int:
    """Return the size of the model that is measured for a whole one, in bytes.

    It goes over the slower direction of its link in 20 seconds, but has 1 MiB at least.

    Args:
        model_bytes: size of the whole model in bytes.
        link: the link of each client; None for no link, which takes the whole model.
    """
    rates = [rate for rate in (link.up, link.down) if rate] if link else []
    if not rates:
        return model_bytes
    most = int(min(rates) / 8 * MOST_SECONDS) // 4 * 4
    return min(model_bytes, max(most, _LEAST_BYTES))


@dataclass(frozen=True)
class CodecBenchPlan:
    """Parameters of a bench of codecs.

    Attributes:
        model_bytes: size of the whole model in bytes.
        measured_bytes: size of the model that is measured.
        clients: number of clients, each a process.
        network: emulated link of each client; None for the machine's own pace.
        cases: what is compared; the first one is without codecs.
        chunk_size: maximum frame size in bytes.
        tensors: number of tensors of equal size; None for matrices and norms.
        repeat: number of runs of each case.
    """

    model_bytes: int
    measured_bytes: int
    clients: int
    network: NetworkLink | None
    cases: Sequence[CodecCase]
    chunk_size: int
    tensors: int | None
    repeat: int

    @property
    def times(self) -> float:
        """How many times as long the whole model is as the measured one."""
        return self.model_bytes / self.measured_bytes

    @property
    def measured(self) -> ExchangedModel:
        """The model that a run moves, and between whom."""
        return ExchangedModel(self.measured_bytes, self.tensors, self.clients, self.network)

    def link_seconds(self, case: CodecCase) -> LinkSeconds:
        """Predict the seconds that the measured model takes over the link in a case."""
        down, up = (
            link_seconds(self.network, round(part * self.measured_bytes))
            for part in (case.left_down, case.left_up)
        )
        return LinkSeconds(down.down, up.up)

    def expected_seconds(self, case: CodecCase) -> float:
        """Predict the seconds of a run of a case."""
        return _START_SECONDS + ROUNDS * sum(self.link_seconds(case))

    def job(self, case: CodecCase) -> Job:
        """Load the exchange job with the settings of a case, and with updates like real ones."""
        return self.measured.job(
            self.chunk_size,
            f"model.factory={json.dumps(_MODEL)}",
            f"train.script={json.dumps(str(_CLIENT))}",
            "streaming.mode=pull",
            *case.overrides,
        )

    def need(self, case: CodecCase) -> Need:
        """Predict the memory and disk that a run of a case needs."""
        need = self.measured.need(self.job(case))
        # The plain run's initial and final model are kept beside the run that is compared.
        return replace(need, disk=need.disk + 2 * self.measured_bytes)
