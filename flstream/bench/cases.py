"""Cases of a bench: the exchange job with other modes, chunks, codecs and links."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

import flstream
from flstream.errors import UsageError
from flstream.job import Job, load_job
from flstream.job.keys import explain
from flstream.job.network_section import LinkSection
from flstream.simulation.forecast import forecast, plain_layout
from flstream.units import format_bytes

EXCHANGE = Path(flstream.__file__).parent / "templates" / "exchange" / "job.conf"
"""Job file of the exchange that is measured."""

MODES = ("pull", "native", "map", "file")
"""Transfer modes. In `file`, clients pull the model into a file and send the update from it."""

CODECS = ("zstd", "delta+shuffle+zstd", "cast", "cast/cast", "int8", "int4", "topk", "ternary")
"""Entries of a list of codecs that `all` stands for."""

_NONE, _ALL = "none", "all"
_LINK_KEYS = ("up", "down", "latency", "jitter", "loss")
_GRAMMAR = (
    "RATE[/RATE][,LATENCY[,JITTER[,LOSS]]], such as 10Mbit,50ms or 10Mbit/100Mbit,50ms,5ms,1%"
)

_FILE_CLIENT = Path(__file__).with_name("file_client.py")
_CODEC_CLIENT = Path(__file__).with_name("model_like.py")
_CODEC_MODEL = "flstream.bench.model_like:build"

# The argument that a codec's value is for, and codecs that lose nothing.
_ARGUMENTS = {
    "cast": "to",
    "int8": "group",
    "int4": "group",
    "topk": "fraction",
    "ternary": "fraction",
    "zstd": "level",
}
_EXACT = ("delta", "shuffle", "zstd")
# Bodies of so many bytes go as they are, whatever the codecs.
_NOT_ENCODED = 64 << 10


class Case(NamedTuple):
    """A set of overrides of the exchange job."""

    name: str  # name in tables, such as `pull 2 MiB`
    overrides: tuple[str, ...]  # overrides of the job file, beside those of all cases
    in_files: bool = False  # whether clients keep the model in a file instead of in memory


class Need(NamedTuple):
    """Predicted peaks of a case's run, in bytes: of all processes, and of all files."""

    memory: int
    disk: int


@dataclass(frozen=True)
class BenchPlan:
    """Cases to measure with one model."""

    model_bytes: int  # size of the model in bytes
    clients: int  # number of clients, each a process
    tensors: int | None  # number of tensors of equal size; None for a mix like a transformer's
    cases: Sequence[Case]  # others are compared with the first
    repeat: int  # number of runs of each case
    with_codecs: bool = False  # whether codecs are compared, so that models differ by what was lost
    job_file: Path = EXCHANGE  # job file whose key `model.args.size` is the size of the model
    # Rounds of a run, of which the last one is measured.
    rounds: int = 2  # the first shares its time with the start of processes

    def job(self, case: Case) -> Job:
        """Load the job with the settings of a case.

        Raises:
            UsageError: The settings make no valid job.
        """
        overrides = [
            f"rounds={self.rounds}",
            f"clients.count={self.clients}",
            f"clients.parallel={self.clients}",
            f"model.args.size={self.model_bytes}",
            *([] if self.tensors is None else [f"model.args.tensors={self.tensors}"]),
        ]
        if self.with_codecs:
            overrides += [
                f"model.factory={json.dumps(_CODEC_MODEL)}",
                f"train.script={json.dumps(str(_CODEC_CLIENT))}",
            ]
        else:
            # Nobody looks at older models, and they would fill the disk.
            overrides.append("checkpoints.keep=1")
        try:
            return load_job(self.job_file, [*overrides, *case.overrides])
        except UsageError as error:
            _, _, mistakes = str(error).partition("\n")
            raise UsageError(f"the case {case.name} cannot be run:\n{mistakes or error}") from error

    def need(self, case: Case) -> Need:
        """Predict the memory and disk that a run of a case needs."""
        # The mix has about 34 tensors, which matters for the header's size alone.
        predicted = forecast(self.job(case), plain_layout(self.model_bytes, self.tensors or 34))
        memory, disk = predicted.total_bytes, predicted.disk_bytes
        if case.in_files:
            # The clients' models are on the disk; one is in memory while it is built.
            memory -= (self.clients - 1) * self.model_bytes
            disk += self.clients * self.model_bytes
        if self.with_codecs:
            disk += 2 * self.model_bytes  # the first case's, which others are compared with
        return Need(memory, disk)


def make_plan(
    model_bytes: int,
    *,
    clients: int,
    modes: str | None = None,
    chunk_sizes: Sequence[int] = (2 << 20,),
    codecs: str | None = None,
    links: Sequence[str] = (),
    tensors: int | None = None,
    repeat: int | None = None,
) -> BenchPlan:
    """Combine every mode, chunk size, list of codecs and link into cases.

    Args:
        model_bytes: Size of the model in bytes.
        clients: Number of clients.
        modes: Modes with commas between them; None for all but `map`, or `pull` with codecs.
        chunk_sizes: Maximum frame sizes in bytes, for the modes that have frames.
        codecs: Entries with commas between them, as docs/bench.md has them; None for no codecs.
        links: Emulated links of each client, each as `10Mbit,50ms`; `none` is without.
        tensors: Number of tensors of equal size; None for a mix.
        repeat: Runs of each case; None for 3, or 1 where a run takes long enough.

    Raises:
        UsageError: An option has a value that it cannot have.
    """
    if model_bytes == 0 or model_bytes % 4:
        raise UsageError(f"--model-size {model_bytes}: weights are float32, so a multiple of 4")
    if tensors is not None and tensors > model_bytes // 4:
        raise UsageError(f"--tensors {tensors}: more than the model has weights")
    chosen = _listed("--modes", modes or ("pull" if codecs else "pull,native,file"))
    if unknown := [mode for mode in chosen if mode not in MODES]:
        raise UsageError(f"--modes {modes}: no mode {unknown[0]!r}; known are {', '.join(MODES)}")
    entries = [_NONE]
    for entry in [] if codecs is None else _listed("--codecs", codecs):
        entries += CODECS if entry == _ALL else [entry]
    if codecs and "file" in chosen:
        raise UsageError(f"--modes {modes}: file goes without --codecs; leave one of them out")
    if codecs and model_bytes <= _NOT_ENCODED:
        what = f"--model-size {model_bytes}: bodies of up to 64 KiB go as they are"
        raise UsageError(f"{what}; name a larger one with --codecs")
    cases: dict[str, Case] = {}
    for link, mode, size, entry in product(links or [_NONE], chosen, chunk_sizes, entries):
        parts = (
            (mode, len(chosen) > 1 or len(entries) == 1),
            (format_bytes(size), len(chunk_sizes) > 1 and mode != "native"),
            (entry, len(entries) > 1),
            ("no link" if link == _NONE else link, len(links) > 1),
        )
        name = " ".join(part for part, differs in parts if differs)
        overrides = (
            f"streaming.mode={'pull' if mode == 'file' else mode}",
            f"streaming.tensor_download_chunk_size={size}",
            *([f"train.script={json.dumps(str(_FILE_CLIENT))}"] if mode == "file" else []),
            *_codec_overrides(entry),
            *_link_overrides(link, model_bytes),
        )
        cases.setdefault(name, Case(name, overrides, mode == "file"))
    # The pace of a link has little noise, and a long run averages it out.
    is_steady = bool(links or codecs) or clients * model_bytes > 10 * 10**9
    runs = repeat or (1 if is_steady else 3)
    return BenchPlan(model_bytes, clients, tensors, [*cases.values()], runs, bool(codecs))


def _listed(option: str, text: str) -> list[str]:
    """Split a list with commas, each entry once."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise UsageError(f"{option} {text!r}: nothing is named")
    return list(dict.fromkeys(entries))


def _codec_overrides(entry: str) -> Iterable[str]:
    """Return overrides for an entry of codecs, `topk:0.05+zstd` or `int8/cast`.

    Codecs of updates stand before a slash and those of models after it. Without a slash, exact
    codecs are for both, and those with a loss for updates alone.
    """
    if entry == _NONE:
        return ()
    up, slash, down = entry.partition("/")
    if not slash:
        down = "+".join(step for step in up.split("+") if step.partition(":")[0].strip() in _EXACT)
    return tuple(
        f"streaming.codecs.{way}=[{', '.join(_codec_section(entry, step) for step in steps)}]"
        for way, steps in (("up", up.split("+")), ("down", down.split("+")))
    )


def _codec_section(entry: str, step: str) -> str:
    name, colon, value = (part.strip() for part in step.partition(":"))
    if not colon:
        return "" if name in ("", _NONE) else json.dumps(name)
    if name not in _ARGUMENTS:
        raise UsageError(f"--codecs {entry}: only {', '.join(_ARGUMENTS)} take a value, not {name}")
    args = f"{_ARGUMENTS[name]} = {json.dumps(value)}"
    return f"{{ type = {json.dumps(name)}, args {{ {args} }} }}"


def _link_overrides(text: str, model_bytes: int) -> Iterable[str]:
    """Return the overrides that give a job's sites a link, and timeouts to match."""
    if text == _NONE:
        return ()
    link = parse_link(text)
    rates = [rate for rate in (link.up, link.down) if isinstance(rate, float)]
    latency = link.latency if isinstance(link.latency, float) else 0.0
    # At least the job file's defaults: a transfer on a slow link is not a stalled one.
    request = 600.0 + 4 * (8 * model_bytes / min(rates, default=math.inf) + latency)
    return (
        f"network={json.dumps(link.model_dump(mode='json', exclude_unset=True))}",
        f"streaming.streaming_per_request_timeout={request!r}",
        f"clients.round_timeout={max(3600.0, 2 * request)!r}",
    )


def parse_link(text: str) -> LinkSection:
    """Parse ``10Mbit,50ms`` or ``10Mbit/100Mbit,50ms,5ms,1%``.

    Args:
        text: Rate up and down, or the rates up and down with a slash between them; then latency,
            jitter and loss, as far as they are given, with commas between them. A part may be left
            empty: ``,50ms`` limits no rate.

    Raises:
        UsageError: It is no such text; the message says what is wrong, and how to write it.
    """
    parts = [part.strip() for part in text.split(",")]
    rates = re.sub(r"/\s*s\s*(?=/|$)", "", parts[0], flags=re.IGNORECASE).split("/")
    what = f"--network {text}"
    if len(parts) > 4 or len(rates) > 2 or not any(parts):
        raise UsageError(f"{what}: write {_GRAMMAR}")
    texts = zip(_LINK_KEYS, [rates[0], rates[-1], *parts[1:]], strict=False)
    values = {key: part for key, part in texts if part.strip()}
    try:
        return LinkSection.model_validate(values)
    except ValidationError as error:
        mistake = explain(error, LinkSection, values)[0]
        raise UsageError(f"{what}: {mistake}; write {_GRAMMAR}") from None
