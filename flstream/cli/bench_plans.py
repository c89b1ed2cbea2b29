"""Plans of ``flstream bench``, parsed from its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flstream.cli import options
from flstream.errors import UsageError

if TYPE_CHECKING:
    from flstream.bench.codec_plan import CodecBenchPlan
    from flstream.bench.plan import Mode, Plan
    from flstream.job.link import NetworkLink

MODES = "pull,native,file"
"""Modes that are compared unless others are named."""

_REPEAT = 3
# Bytes that a round moves in one direction, above which a single run is long enough to average
# out the noise of a shared machine.
_LONG_BYTES = 10 * 10**9
# Bodies of so many bytes go as they are, whatever the codecs.
_NOT_ENCODED = 64 << 10


class ExchangeOptions(NamedTuple):
    """Options that benches of modes and of codecs have in common, as they are given.

    Attributes:
        model_size: value of ``--model-size``.
        clients: value of ``--clients``.
        network: value of ``--network``; None if it is not given.
        chunk_size: value of ``--chunk-size``.
        tensors: value of ``--tensors``; None if it is not given.
        repeat: value of ``--repeat``; None if it is not given.
    """

    model_size: str
    clients: int
    network: str | None
    chunk_size: str
    tensors: int | None
    repeat: int | None

    @property
    def model_bytes(self) -> int:
        """Size of the model in bytes."""
        found = options.size("--model-size", self.model_size)
        if found % 4 or found == 0:
            raise UsageError(
                f"--model-size {self.model_size}: the weights are float32, so a multiple of 4"
            )
        return found

    @property
    def link(self) -> NetworkLink | None:
        """Link of each client; None without."""
        from flstream.job.link import parse_link

        if self.network is None:
            return None
        try:
            return parse_link(self.network)
        except UsageError as error:
            raise UsageError(f"--network {self.network}: {error}") from None

    @property
    def chunk_sizes(self) -> list[int]:
        """Chunk sizes in bytes, each once."""
        sizes = (options.chunk_size(part.strip()) for part in self.chunk_size.split(","))
        return list(dict.fromkeys(sizes))

    def tensors_of(self, model_bytes: int) -> int | None:
        """Number of equal tensors of a model; None for a mix.

        Args:
            model_bytes: size of the model in bytes.
        """
        if self.tensors is not None and self.tensors > model_bytes // 4:
            raise UsageError(f"--tensors {self.tensors}: more than the model has weights")
        return self.tensors


def mode_plan(exchange: ExchangeOptions, modes: str | None) -> Plan:
    """Return the plan of a bench of modes.

    Args:
        exchange: options of the exchange.
        modes: value of ``--modes``; None if it is not given.

    Raises:
        UsageError: an option has a value that it cannot have.
    """
    from flstream.bench.plan import Plan

    model_bytes, link, repeat = exchange.model_bytes, exchange.link, exchange.repeat
    tensors = exchange.tensors_of(model_bytes)
    if repeat is None:
        # The pace of a link has little noise.
        is_long = exchange.clients * model_bytes > _LONG_BYTES
        repeat = 1 if is_long or link is not None else _REPEAT
    chosen = _modes(MODES if modes is None else modes)
    if link is not None and "map" in chosen:
        raise UsageError(f"--modes {modes}: map sends nothing; leave it out with --network")
    return Plan(model_bytes, exchange.clients, chosen, exchange.chunk_sizes, tensors, repeat, link)


def codec_plan(exchange: ExchangeOptions, codecs: str, *, whole: bool) -> CodecBenchPlan:
    """Return the plan of a bench of codecs.

    Args:
        exchange: options of the exchange.
        codecs: value of ``--codecs``.
        whole: whether the whole model is measured, however long its link takes.

    Raises:
        UsageError: an option has a value that it cannot have.
    """
    from flstream.bench.codec_cases import parse_codecs
    from flstream.bench.codec_plan import CodecBenchPlan, shortened

    cases = parse_codecs(codecs)
    model_bytes, link, sizes = exchange.model_bytes, exchange.link, exchange.chunk_sizes
    if model_bytes <= _NOT_ENCODED:
        raise UsageError(
            f"--model-size {exchange.model_size}: bodies of up to 64 KiB go as they are; "
            "name a larger one with --codecs"
        )
    if len(sizes) > 1:
        raise UsageError(
            f"--chunk-size {exchange.chunk_size}: codecs are compared at one; name that alone"
        )
    measured = model_bytes if whole else shortened(model_bytes, link)
    tensors = exchange.tensors_of(measured)
    repeat = exchange.repeat or 1
    return CodecBenchPlan(
        model_bytes, measured, exchange.clients, link, cases, sizes[0], tensors, repeat
    )


def _modes(text: str) -> list[Mode]:
    from flstream.bench.plan import MODES

    known: dict[str, Mode] = {mode: mode for mode in MODES}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"there is no mode {unknown[0]!r}" if unknown else "no mode is named"
        raise UsageError(f"--modes {text}: {what}; known are {', '.join(MODES)}")
    return [known[name] for name in dict.fromkeys(names)]
