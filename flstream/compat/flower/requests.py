"""Messages between a ServerApp's process and the workflow that does what it asks for."""

from __future__ import annotations

from typing import Any

import msgspec

Content = bytes
"""Packed records, or where they are: see :mod:`flstream.compat.flower.content`."""


CLIENT_APP_RAISED = 2
"""Code of Flower's for an exception of a ClientApp."""


class AppPlace(msgspec.Struct, frozen=True):
    """A Flower app, and the run that it is in.

    Attributes:
        folder: Absolute path of the app's folder.
        component: Its ServerApp or ClientApp, ``package.module:name``.
        config: Its settings (``app.config``), as JSON.
        seed: Seed of the job.
        sites: Names of the sites, in their order.
    """

    folder: str
    component: str
    config: str
    seed: int
    sites: list[str]


class Start(msgspec.Struct, tag=True, frozen=True):
    """Workflow: the run begins.

    Attributes:
        model: Version of the initial model.
        path: Path of its file.
        digest: Its digest.
        folder: Folder of files of contents, updates and models.
    """

    model: int
    path: str
    digest: str
    folder: str


class Sent(msgspec.Struct, frozen=True):
    """Message to a node.

    Attributes:
        site: Its site.
        content: Packed records.
        facts: Facts of the message: its type, id, group, time and weight's name.
    """

    site: str
    content: Content
    facts: dict[str, Any]


class SentBatch(msgspec.Struct, frozen=True):
    """Messages to nodes, each of which is sent one at most, with one model.

    Attributes:
        number: Number of the batch, from 1.
        category: ``train``, ``evaluate`` or ``query``.
        model: Version of the model that has the arrays; the newest one where none has.
        messages: The messages.
    """

    number: int
    category: str
    model: int | None
    messages: list[Sent]


class Send(msgspec.Struct, tag=True, frozen=True):
    """App: send messages. Their sites answer once the answers are read or folded, or at the next.

    Attributes:
        batches: The messages.
        timeout: Seconds that a site may take; None for the job's.
        unused_batches: Numbers of earlier batches to which nobody refers any more.
        unused_models: Versions of models to which nobody does.
    """

    batches: list[SentBatch]
    timeout: float | None
    unused_batches: list[int]
    unused_models: list[int]


class Read(msgspec.Struct, tag=True, frozen=True):
    """App: tell the answers to a batch."""

    batch: int


class Answer(msgspec.Struct, frozen=True):
    """Answer of a site.

    Attributes:
        site: The site.
        content: Packed records; None where it has failed.
        failure: Why it has failed.
        code: Code of its error.
        has_update: Whether its arrays are an update of the model.
    """

    site: str
    content: Content | None
    failure: str = ""
    code: int = CLIENT_APP_RAISED
    has_update: bool = False


class Answers(msgspec.Struct, tag=True, frozen=True):
    """Workflow: the answers to a batch."""

    answers: list[Answer]


class OpenUpdate(msgspec.Struct, tag=True, frozen=True):
    """App: write the update of a site to a file, to be read."""

    batch: int
    site: str


class UpdatePath(msgspec.Struct, tag=True, frozen=True):
    """Workflow: the path of an update's file."""

    path: str


class Store(msgspec.Struct, tag=True, frozen=True):
    """App: make a durable file a model of the run."""

    path: str


class FoldAnswers(msgspec.Struct, tag=True, frozen=True):
    """App: fold the answers to a batch into a model.

    Attributes:
        batch: The batch.
        sites: The sites whose answers are folded; None for all, as they come.
        weights: A weight for each of them; None for the answers' own.
        rule: Name and arguments of a strategy's rule; None for the mean.
    """

    batch: int
    sites: list[str] | None = None
    weights: list[float] | None = None
    rule: tuple[str, dict[str, Any]] | None = None


class Stored(msgspec.Struct, tag=True, frozen=True):
    """Workflow: a model of the run.

    Attributes:
        model: Its version.
        path: Path of its file.
        digest: Its digest.
    """

    model: int
    path: str
    digest: str


class Remember(msgspec.Struct, tag=True, frozen=True):
    """App: return the bytes that were computed under a name, or compute them first."""

    name: str


class Compute(msgspec.Struct, tag=True, frozen=True):
    """Workflow: nobody has computed it; do it now."""


class Value(msgspec.Struct, tag=True, frozen=True):
    """Either: the bytes that were computed."""

    value: bytes


class Report(msgspec.Struct, tag=True, frozen=True):
    """App: a model has these metrics."""

    model: int
    metrics: dict[str, float]


class Done(msgspec.Struct, tag=True, frozen=True):
    """Workflow: the request is done, or will be once its result is needed."""


class Over(msgspec.Struct, tag=True, frozen=True):
    """Workflow: the run is to end (``stop_when``, ``patience``)."""


class End(msgspec.Struct, tag=True, frozen=True):
    """App: the ServerApp has ended.

    Attributes:
        model: Version of its last model; None where it has none.
        error: One sentence on the exception that ended it; empty for none.
    """

    model: int | None
    error: str = ""


FromApp = Send | Read | OpenUpdate | Store | FoldAnswers | Remember | Value | Report | End
ToApp = Start | Answers | UpdatePath | Stored | Compute | Value | Done | Over
