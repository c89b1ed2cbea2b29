"""Checks of training code's answers, and their preparation for sending."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flstream.client.fl_model import FLModel, ParamsType, no_number, number_of
from flstream.errors import ClientError
from flstream.job.bodies import NUM_STEPS
from flstream.model.checkpoint import FileSource, regular_size
from flstream.model.composed import arranged
from flstream.model.digests import BodyDigest
from flstream.model.layout import Layout
from flstream.model.memory import Framework, Params
from flstream.model.source import Source
from flstream.runs.summary import BESIDE_METRICS
from flstream.worker.logged_values import check_length
from flstream.worker.messages import (
    LEAST_WEIGHT,
    MOST_WEIGHT,
    InlineUpdate,
    Task,
    is_weight,
)

SITE = "flstream.site"
"""Key of the site's name in the header of a file that it has received a model into."""

_WEIGHT_KEYS = ("num_examples", NUM_STEPS)


def metrics_of(model: FLModel) -> dict[str, float]:
    """Return the metrics of an answer as floats.

    Raises:
        ClientError: A metric is no number, or has a reserved or too long a name; the message names
            it.
    """
    metrics = {}
    for name, value in (model.metrics or {}).items():
        if not isinstance(name, str):
            raise ClientError(f"{name!r} cannot name a metric, since it is no string; rename it")
        check_length("the metric", name)
        number = number_of(value)
        if number is None:
            raise ClientError(
                f"the metric {name!r} is {no_number(value)}; send one, such as loss.item()"
            )
        metrics[name] = number
    for name in metrics.keys() & BESIDE_METRICS:
        raise ClientError(f"a metric may not be named {name!r}, which the summary uses; rename it")
    return metrics


def weight_of(meta: Mapping[str, Any]) -> float:
    """Return the weight in an answer's meta: its number of examples, or else 1.0.

    Raises:
        ClientError: It is no number, or not between :data:`LEAST_WEIGHT` and :data:`MOST_WEIGHT`;
            the message names the key.
    """
    key = next((name for name in _WEIGHT_KEYS if name in meta), None)
    if key is None:
        return 1.0
    value = meta[key]
    # A bool is a condition, most likely, and no count.
    weight = None if isinstance(value, bool | np.bool_) else number_of(value)
    if weight is None:
        raise ClientError(f"meta[{key!r}] is {no_number(value)}; send the number of examples")
    if not is_weight(weight):
        raise ClientError(
            f"meta[{key!r}] is {weight:g}, and an update's weight is a number from "
            f"{LEAST_WEIGHT:g} to {MOST_WEIGHT:g}; send the number of examples"
        )
    return weight


def framework_of(params: Params) -> Framework:
    """Return ``"numpy"`` for an update of NumPy arrays alone, else ``"pytorch"``."""
    arrays = all(isinstance(value, np.ndarray | np.generic) for value in params.values())
    return "numpy" if arrays and params else "pytorch"


def names_to_send(
    names: Collection[str],
    model: FLModel,
    task: Task,
    layout: Layout | None,
    selected: Collection[str] | None,
    held_back: Collection[str],
    *,
    is_part: bool = False,
) -> tuple[Collection[str], bool]:
    """Return the names of an update's tensors to send, and whether some are missing among them.

    Tensors that are not aggregated (``selected``) keep their old values, so they are left out.
    Those that are held back did not reach the code, which need not send them. ``is_part`` tells
    that a body travels beside the model of which nothing is sent.
    """
    if task.kind == "submit_model" and (not names or model.params_type == ParamsType.DIFF):
        what = "no params" if not names else "a difference as its params"
        raise ClientError(
            f"the answer to the task submit_model has {what}; send the whole model as "
            "FLModel(params=...)"
        )
    if model.params is None and model.file is None:
        raise ClientError(
            f"the answer to round {task.round}'s training has no params; "
            "send FLModel(params=..., ...)"
        )
    partial = bool(model.meta.get("partial", False))
    if task.parts is not None:
        return _names_of_parts(names, task, selected or (), partial=partial), True
    if layout is None:
        return names, partial
    if selected is None:
        selected = layout.by_name.keys()
    if len(selected) == len(layout.tensors) and not held_back and not is_part:
        return names, partial
    own_name = {name: layout.aliases.get(name, name) for name in names}
    if not partial:
        # The server treats this update as partial, so it would not notice that one is missing.
        missing = set(selected).difference(own_name.values(), held_back)
        if missing:
            raise ClientError(
                f"the update of round {task.round} lacks tensor {min(missing)!r}; send it, "
                "or say that it is meant: meta={'partial': True}"
            )
    left_out = layout.by_name.keys() - selected
    return [name for name in names if own_name[name] not in left_out], True


def _names_of_parts(
    names: Collection[str], task: Task, selected: Collection[str], *, partial: bool
) -> Collection[str]:
    """Return the names of those tensors of an answer that the workflow has sent back."""
    assert task.parts is not None
    own_name = {name: task.parts.ties.get(name, name) for name in names}
    if not partial and (missing := set(selected).difference(own_name.values())):
        raise ClientError(
            f"the update of round {task.round} lacks tensor {min(missing)!r}, which the workflow "
            "folds; send it, or say that it is meant: meta={'partial': True}"
        )
    return [name for name in names if own_name[name] in selected]


def file_to_send(path: Path, site: str, received: Layout | None, beside: Sequence[str]) -> Source:
    """Open the file of an answer, whose tensors are put in the order in which models travel.

    ``beside`` are names of the bodies that the workflow folds beside the model, which a file does
    not have.
    """
    expect_file_alone(beside)
    regular_size(path)
    source = FileSource(path)
    owner = source.metadata.get(SITE, site)
    if owner != site:
        raise ClientError(
            f"{path} has the model of {owner}, which received it after {site} did; give each site "
            "a file of its own, such as a relative path"
        )
    return source if source.layout == received else arranged(source)


def expect_file_alone(beside: Sequence[str]) -> None:
    """Refuse a model in a file where bodies travel beside it."""
    if beside:
        raise ClientError(
            f"the workflow has {beside[0]!r} travel beside the model, which a file does not hold; "
            "leave file out of receive() and of FLModel, or take another workflow"
        )


def check_size(update: Layout, layout: Layout | None, most: int) -> None:
    """Refuse an update that is larger than a model, before it is sent."""
    if update.nbytes <= most:
        return
    known = update if layout is None else layout
    strange = next((name for name in update.names if known.find(name) is None), None)
    if strange is None:
        flaw = f"it takes {update.nbytes} bytes, and the model {most}"
    else:
        flaw = f"tensor {strange!r} is not part of the model"
    raise ClientError(
        f"the update does not fit the model: {flaw}; send tensors of the received model alone"
    )


def clones(tensors: Params) -> Params:
    """Return copies of tensors by name; tied names have one copy."""
    copies: dict[int, Any] = {}
    for value in tensors.values():
        if id(value) not in copies:
            copies[id(value)] = (
                value.copy() if isinstance(value, np.ndarray) else value.detach().clone()
            )
    return {name: copies[id(value)] for name, value in tensors.items()}


def inline(update: Source, received: Layout | None = None) -> InlineUpdate:
    """Return a copy of an update that travels in its site's answer.

    The header of the received model's layout is encoded once for all sites.
    """
    layout = update.layout
    if received is not None and layout == received:
        layout = received
    digest = BodyDigest(layout)
    body = bytearray(layout.nbytes)
    if body:
        update.read(0, len(body), memoryview(body))
        digest.update([memoryview(body)])
    return InlineUpdate(layout.plain_header[8:], bytes(body), digest.hexdigest())
