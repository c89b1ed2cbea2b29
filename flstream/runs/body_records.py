"""What each site received and sent, a record for each body, and the keys of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flstream.codecs.lossy import LossyCodec
from flstream.model.layout import Layout
from flstream.runs.history import History
from flstream.runs.journal import read_events
from flstream.telemetry.events import AnyEvent, ModelReceived, UpdatesReceived

RECORDED: tuple[type[AnyEvent], ...] = (ModelReceived, UpdatesReceived)
"""Kinds of events whose lines a history has to note for :func:`read_bodies`."""


class BodyRecord(NamedTuple):
    """A body that a site received or sent.

    Attributes:
        site: Name of the site.
        direction: Whether the site received it or sent it.
        task: What the task was that it belongs to.
        round: Round of the task; of an evaluation, that of the model.
        effect: Number of the workflow's effect that asked for the task; 0 for an evaluation that
            is none.
        model: Digest of the received model; of an update, that of the model that it is of.
        made: Round that made the body: of a model, 0 is the initial one.
        origin: Who sent it: the server, or a site or worker.
        receiver: Who got it: likewise.
        tags: Form in which it travelled; see the events.
        size: Bytes of the tensors that it stands for; 0 where that is not known.
        bytes: Bytes that moved, with repeats.
        reused: Bytes that did not, since the receiver had them.
        encoded: Bytes that came as fewer, in frames that an exact codec had encoded.
        with_base: Bytes of these whose frames were encoded with a model that both sides had.
        sites: Number of sites for which it came at once; what moved, moved for all of them.
        beside: Names of bodies that travelled with a model.
        part: Of a partial update, which tensors it has; see
            :class:`~flstream.telemetry.events.UpdatesReceived`.
    """

    site: str
    direction: Literal["received", "sent"]
    task: Literal["train", "evaluate", "submit_model"]
    round: int
    effect: int
    model: str
    made: int
    origin: str
    receiver: str
    tags: tuple[str, ...]
    size: int
    bytes: int
    reused: int
    encoded: int
    with_base: int
    sites: int = 1
    beside: tuple[str, ...] = ()
    part: str = ""

    def document(self) -> dict[str, Any]:
        """Convert the record to JSON."""
        return {**self._asdict(), "not_sent": self.not_sent}

    @property
    def not_sent(self) -> int:
        """Bytes that it would have taken more to send it as it is."""
        # Repeats are among the bytes that moved.
        return max(self.size - self.bytes, 0) if self.size else self.reused


@dataclass(frozen=True)
class RecordedBodies:
    """What the sites of a run received and sent. The journal is read anew for each iteration.

    Attributes:
        path: Path of the journal.
        history: What was read of it, with the lines of :data:`RECORDED`.
    """

    path: Path
    history: History

    def __iter__(self) -> Iterator[BodyRecord]:
        return read_bodies(self.path, self.history)


def read_bodies(path: Path, history: History, site: str | None = None) -> Iterator[BodyRecord]:
    """Yield what sites received and sent, in the order of the journal.

    What was done again after an interruption is there once. Memory does not grow with the journal,
    unless the run was resumed.

    Args:
        path: Path of the journal.
        history: What was read of it, with the lines of :data:`RECORDED`.
        site: Name of a site; None for all of them.

    Raises:
        OSError: The journal cannot be read.
        SimulationError: It was changed since.
    """
    sites = history.line_sites
    lines = [each for each in history.lines if site is None or site in sites[each]]
    # A fold that is done again records the updates again that are taken up.
    newest: dict[tuple[int, str], int] = {}
    if history.timeline.resumes:
        for line, event in zip(lines, read_events(path, lines), strict=True):
            if isinstance(event, UpdatesReceived):
                newest |= {(event.effect, each): line for each in event.updates}
    for line, event in zip(lines, read_events(path, lines), strict=True):
        for each in sites[line]:
            if site is not None and each != site:
                continue
            if isinstance(event, ModelReceived):
                yield _received(each, event)
            elif isinstance(event, UpdatesReceived):
                if newest.get((event.effect, each), line) != line:
                    continue
                yield _sent(each, event)


def _received(site: str, event: ModelReceived) -> BodyRecord:
    cost = event.cost
    return BodyRecord(
        site=site,
        direction="received",
        task=event.task,
        round=event.round,
        effect=event.effect,
        model=event.digest,
        made=event.made,
        origin=event.origin,
        receiver=site,
        tags=tuple(event.tags),
        size=event.size,
        bytes=cost.bytes,
        reused=cost.reused,
        encoded=cost.encoded,
        with_base=cost.with_base,
        sites=len(event.sites),
        beside=tuple(event.bodies),
    )


def _sent(site: str, event: UpdatesReceived) -> BodyRecord:
    sent = event.updates[site]
    return BodyRecord(
        site=site,
        direction="sent",
        task=event.task,
        round=event.round,
        effect=event.effect,
        model=event.base,
        made=event.round,
        origin=site,
        receiver=event.receiver,
        tags=tuple(event.tags),
        size=sent.size,
        bytes=sent.bytes,
        reused=sent.reused,
        encoded=sent.encoded,
        with_base=sent.with_base,
        part=event.part,
    )


LOSSLESS = "lossless"
"""Tag of the tensors of a body that the codec with a loss has passed over."""


class TensorKey(NamedTuple):
    """What one tensor is, whose, and in which form it travelled.

    After ``TensorKey`` of OpenFL (``openfl.utilities.types``), which has the same five parts.

    Attributes:
        tensor: Name of the tensor, or of a metric.
        origin: Who sent it.
        round: Round that made it; 0 for the initial model.
        report: Whether it is a metric that a site reported, and no tensor of a model.
        tags: What it is (``model``, ``trained``, ``submitted`` or ``metric``), and its form. That
            of its frames is that of the body, whose frames do not end where tensors do.
    """

    tensor: str
    origin: str
    round: int
    report: bool
    tags: tuple[str, ...]


def tensor_keys(
    record: BodyRecord, layout: Layout, codec: LossyCodec | None = None
) -> list[TensorKey]:
    """Return the keys of a body's tensors, in the order of the layout.

    Args:
        record: The record of the body.
        layout: Layout of the model. Those of bodies that travel with it are not looked at.
        codec: What encodes bodies of this direction with a loss in the run; None for nothing. It
            is of account if the record has its name.

    Raises:
        CodecError: The codec, which may be the user's own, gives no length.
    """
    names = [spec.name for spec in layout.tensors]
    if record.part:
        bits = int(record.part, 16)
        names = [name for place, name in enumerate(names) if bits >> place & 1]
    kind = "model" if record.direction == "received" else _SENT[record.task]
    coded: Iterable[str] = ()
    lossy = codec is not None and codec.name in record.tags
    if codec is not None and lossy:
        coded = codec.coded(layout).coded
    keys = []
    for name in names:
        tags = record.tags
        if codec is not None and lossy and name not in coded:
            tags = tuple(LOSSLESS if tag == codec.name else tag for tag in tags)
        keys.append(TensorKey(name, record.origin, record.made, False, (kind, *tags)))
    return keys


def metric_keys(
    site: str, round_number: int, task: str, metrics: Mapping[str, float | None]
) -> list[TensorKey]:
    """Return the keys of metrics that a site reported.

    Args:
        site: Name of the site.
        round_number: Round of the task.
        task: What the site did: ``train`` or ``evaluate``.
        metrics: The metrics, by name.
    """
    return [TensorKey(name, site, round_number, True, ("metric", task)) for name in metrics]


_SENT = {"train": "trained", "submit_model": "submitted"}
