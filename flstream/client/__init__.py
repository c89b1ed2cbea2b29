"""What a training script imports.

The functions follow NVFlare's client API, so that a script written for it moves over by changing
its import::

    import flstream.client as flare

    flare.init()
    while flare.is_running():
        model = flare.receive()
        params, metrics = train(model.params)
        flare.send(flare.FLModel(params=params, metrics=metrics))

They work inside ``flstream simulate`` only. If there are as many processes as sites, the script is
run once in each, and does task after task. Otherwise it is run anew for each site and task, and the
loop ends after that task. A class like :class:`Learner` (``train.learner``) does without the loop,
and is the quicker way where sites are many and small.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.client.context import SiteContext
from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.learner import Learner
from flstream.client.proximal import proximal_term
from flstream.client.session import current as _current

if TYPE_CHECKING:
    import torch

__all__ = [
    "FLModel",
    "Learner",
    "ParamsType",
    "SiteContext",
    "get_site_name",
    "get_state_dir",
    "init",
    "is_evaluate",
    "is_running",
    "is_train",
    "log",
    "proximal_term",
    "receive",
    "send",
    "system_info",
]


def init() -> None:
    """Report to the server as ready. Call it once, after the script's imports.

    Raises:
        ClientError: the script does not run as a site.
    """
    _current().init()


def is_running() -> bool:
    """Whether there is another task; waits until that is known."""
    return _current().is_running()


def receive(
    timeout: float | None = None,
    into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
) -> FLModel | None:
    """Fetch the global model, and seed Python's, NumPy's and torch's generators for this task.

    Args:
        timeout: seconds to wait for a task; None waits for ever.
        into: a module, or its state dict, whose own parameters and buffers are to receive the
            bytes, so that there is no second copy. Without it, new memory is made.

    Returns:
        The model, with writable tensors (or arrays, where ``train.exchange_format`` is numpy) in
        ``params``; None if the run is over or no task came within ``timeout``.

    Raises:
        ClientError: the model does not fit ``into``, or the last one was not answered yet.
        StreamingError: the model did not arrive.
    """
    return _current().receive(timeout, into)


def send(model: FLModel, clear_cache: bool = True) -> None:
    """Answer the current task and wait until the server has what it needs.

    If sites share a process and the model is small, a copy is kept instead, and sent with others.
    A training task is answered with ``params``, dense tensors on the CPU or NumPy arrays of the
    received names, dtypes and shapes. They stay where they are while the server fetches them
    range by range. An evaluation is answered with ``metrics`` alone.

    Args:
        model: the answer.
        clear_cache: afterwards let go of the tensors: those of ``model`` and those received.

    Raises:
        ClientError: there is no task, or the answer lacks what it asks for.
        LayoutError: a tensor cannot be streamed; the message names it.
    """
    _current().send(model, clear_cache)


def is_train() -> bool:
    """Whether the current task is to train."""
    return _current().kind == "train"


def is_evaluate() -> bool:
    """Whether the current task is to evaluate the model and send metrics."""
    return _current().kind == "evaluate"


def get_site_name() -> str:
    """The name of this site: ``site-1`` and up."""
    return _current().site


def get_state_dir() -> Path:
    """A folder for files of the site's own that are kept from one round to the next.

    It has what the site left there in the last round in which it trained. What it holds when the
    task is answered is kept, whole, even if the run is killed and resumed. What an evaluation
    leaves there is not. Copying it takes its time, so it is copied when it is asked for.

    Raises:
        ClientError: there is no task.
    """
    return _current().context.state_dir


def system_info() -> Mapping[str, Any]:
    """What this site knows of the run.

    Returns:
        ``site_name``, ``job_name``, ``clients`` (number of sites), ``total_rounds``, ``seed`` and
        ``site_dir`` (a folder of the site's own in the run directory). During a task also
        ``task_seed`` (of this site in this round) and ``state_dir`` (see :func:`get_state_dir`).
    """
    return _current().system_info()


def log(key: str, value: float, data_type: Any = None, **_: Any) -> None:
    """Record a number in the run's events, with the site and the round.

    Args:
        key: what it is.
        value: the number.
        data_type: accepted, as in NVFlare's signature, and of no effect.
    """
    _current().log(key, value)
