"""Messages between a ServerApp's process and the workflow that does what it asks for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

Content = bytes
"""Packed records, or where they are: see :mod:`flstream.compat.flower.content`."""

CLIENT_APP_RAISED = 2
"""Code of Flower's for an exception of a ClientApp."""

LEAST_WEIGHT = 1e-15
"""Number that a weight of 0 becomes: an update's weight is above it."""

_ID_BITS = 63


class AppPlace(msgspec.Struct, frozen=True):
    """A Flower app, and the run that it is in.

    Attributes:
        folder: Absolute path of the app's folder.
        component: Its ServerApp or ClientApp, ``package.module:name``.
        config: Its settings (``app.config``), as JSON.
        seed: Seed of the job.
        sites: Names of the sites, in their order.
        files: Folder of files of contents, updates and models; empty before the run.
    """

    folder: str
    component: str
    config: str
    seed: int
    sites: list[str]
    files: str = ""


def node_id(seed: int, site: str) -> int:
    """Return the id of a site's node."""
    return random.Random(f"flstream/flower/node/{seed}/{site}").getrandbits(_ID_BITS)


def run_id(seed: int) -> int:
    """Return the id of a run."""
    return random.Random(f"flstream/flower/run/{seed}").getrandbits(_ID_BITS)


class ModelOfRun(msgspec.Struct, tag=True, frozen=True, eq=False, weakref=True):
    """Workflow: a model of the run, which stays as long as the app refers to it.

    Attributes:
        version: Its version.
        path: Path of its file.
        digest: Its digest.
    """

    version: int
    path: str
    digest: str


class Sent(msgspec.Struct, frozen=True):
    """Message to a node.

    Attributes:
        site: Its site.
        content: Packed records.
        facts: Facts of the message: its type, group and times.
    """

    site: str
    content: Content
    facts: dict[str, Any]


class Batch(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Messages that are sent together: one to a node at most, of one category, with one model.

    Attributes:
        number: Its number, from 1.
        category: ``train``, ``evaluate`` or ``query``.
        model: The model that has the messages' arrays; None where they have none of a model's.
        weighted_by: Name of the metric by which the sites weight their answers.
        is_folded_unseen: Whether the strategy folds the answers as they come, which then have to be
            updates of the model.
        messages: The messages, until they are sent.
    """

    number: int
    category: str
    model: ModelOfRun | None
    weighted_by: str
    is_folded_unseen: bool
    messages: list[Sent]


class Send(msgspec.Struct, tag=True, frozen=True):
    """App: send messages. Their sites answer once the answers are read or folded, or at the next.

    Attributes:
        batches: The messages.
        timeout: Seconds that a site may take; None for the job's.
        unused_batches: Numbers of earlier batches to which nobody refers any more.
        unused_models: Versions of models to which nobody does.
    """

    batches: list[Batch]
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


class WriteUpdate(msgspec.Struct, tag=True, frozen=True):
    """App: write the update of a site to a file, to be read."""

    batch: int
    site: str

    def path_in(self, folder: Path) -> Path:
        """Return the path of the file; it says what it is for a replay, too."""
        return folder / f"reply-{self.batch}-{self.site}.safetensors"


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


class Remember(msgspec.Struct, tag=True, frozen=True):
    """App: return the bytes that were computed under a name."""

    name: str


class Value(msgspec.Struct, tag=True, frozen=True):
    """Either: the bytes that were computed; None where the app is to compute them now."""

    value: bytes | None


class Report(msgspec.Struct, tag=True, frozen=True):
    """App: a model has these metrics."""

    model: int
    metrics: dict[str, float]


class Done(msgspec.Struct, tag=True, frozen=True):
    """Workflow: the request is done, or will be once its result is needed."""


class End(msgspec.Struct, tag=True, frozen=True):
    """App: the ServerApp has ended. Workflow: it is to end (``stop_when``, ``patience``).

    Attributes:
        model: Version of its last model; None where it has none.
        error: One sentence on the exception that ended it; empty for none.
    """

    model: int | None = None
    error: str = ""


FromApp = Send | Read | WriteUpdate | Store | FoldAnswers | Remember | Value | Report | End
ToApp = ModelOfRun | Answers | Value | Done | End
