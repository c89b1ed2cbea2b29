"""Calls of the workflow by a ServerApp's process, and the records that they exchange."""

from __future__ import annotations

import random
from collections.abc import Sequence
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


class ModelOfRun(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A model of the run, which stays as long as the app refers to it.

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


class AppCall(msgspec.Struct, frozen=True):
    """Call of a method of :class:`flstream.compat.flower.program.RunCalls`.

    Attributes:
        method: Name of the method.
        arguments: Its arguments: plain values, and records of this module.
    """

    method: str
    arguments: Sequence[Any]


class AppResult(msgspec.Struct, frozen=True):
    """Value that a method has returned."""

    value: Any
