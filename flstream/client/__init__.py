"""Client API: the functions and classes that training code imports.

The functions follow NVFlare's client API, so that a script written for it moves over by changing
its import::

    import flstream.client as flare

    flare.init()
    while flare.is_running():
        model = flare.receive()
        params, metrics = train(model.params)
        flare.send(flare.FLModel(params=params, metrics=metrics))

In a process other than rank 0 of a ``train.command``, ``is_running()`` and ``receive()`` follow
rank 0, the received model has no tensors, and what is sent or logged goes nowhere.

They work inside ``flstream simulate`` only. If there are as many worker processes as sites, the
script is run once in each process, and its loop handles task after task. Otherwise the script is
run anew for each site and task, and its loop ends after that task. A class like :class:`Learner`
(``train.learner``) needs no loop, and is faster for many small sites.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.client.adapters import to_rank
from flstream.client.base import base_model
from flstream.client.decorators import evaluate, train
from flstream.client.dynamic import DynamicRegulariser
from flstream.client.file_model import edit
from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.learner import Learner, SiteContext, TimeLeft
from flstream.client.offloaded import offloaded
from flstream.client.optimizer_state import restore_optimizer
from flstream.client.outer_steps import outer_steps
from flstream.client.personal import own_model, personal
from flstream.client.proximal import proximal_term
from flstream.client.scaffold import ScaffoldControl
from flstream.client.session import current as _current
from flstream.errors import ClientError as _ClientError
from flstream.streaming.selection import TensorSpec

if TYPE_CHECKING:
    import torch

    from flstream.model.memory import Params

__all__ = [
    "TimeLeft",
    "DynamicRegulariser",
    "FLModel",
    "Learner",
    "ParamsType",
    "ScaffoldControl",
    "SiteContext",
    "TensorSpec",
    "base_model",
    "clear",
    "deadline",
    "device",
    "edit",
    "evaluate",
    "fetch",
    "get_config",
    "get_job_id",
    "get_site_name",
    "get_state_dir",
    "get_task_name",
    "init",
    "is_evaluate",
    "is_running",
    "is_submit_model",
    "is_train",
    "log",
    "offloaded",
    "outer_steps",
    "own_model",
    "personal",
    "proximal_term",
    "receive",
    "restore_optimizer",
    "send",
    "shutdown",
    "system_info",
    "to_rank",
    "train",
    "work",
]


def init(rank: str | int | None = None, config_file: str | None = None) -> None:
    """Report to the server, once, that the script is ready, after its imports.

    Args:
        rank: Number of this process among those that ``train.command`` starts, if it is to be
            compared with the launcher's; None, or 0 where there is one process.
        config_file: Without effect; what NVFlare reads there stands in the job file.

    Raises:
        ClientError: The script is not run by ``flstream simulate``, or this process is another
            rank.
    """
    _current().init(rank)


def device() -> torch.device:
    """Return the device to train on: the first GPU that this process sees, or the CPU.

    A worker sees the GPUs that it was dealt (``engine.gpus``, ``clients.gpus``), or all of its
    machine. It works outside of a run, too.
    """
    import torch

    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def is_running() -> bool:
    """Wait for the next task.

    Returns:
        True once there is one; False if the run is over.

    Raises:
        ClientError: :func:`init` was not called.
    """
    return _current().is_running()


def receive(
    timeout: float | None = None,
    into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> FLModel | None:
    """Fetch the global model, and seed Python's, NumPy's and torch's generators.

    Called again before the task is answered, it returns the same object, and seeds nothing.

    Args:
        timeout: Seconds to wait for a task; None to wait without a limit.
        into: Module, or its state dict, whose parameters and buffers receive the bytes in place,
            so that there is no second copy, also on another device; of a PEFT model, its adapter.
            None to allocate new memory.
        file: Path of a safetensors file into which the model is received, in the place of
            ``params``: no process has the model in memory, and bytes that a file of the same
            tensors has already are not fetched. A relative path is below the site's own working
            folder. An existing file is written over. :func:`edit` reads and writes its tensors.

    Returns:
        The model, with writable tensors (or arrays, if ``train.exchange_format`` is numpy) in
        ``params``, or the path of the file in ``file``; None if the run is over or no task came
        within ``timeout``.

    Raises:
        ClientError: The model does not fit ``into``, or bodies travel beside it that a file does
            not hold.
        CheckpointError: The file cannot be written.
        StreamingError: The model did not arrive.
    """
    return _current().receive(timeout, into, file=file)


def fetch(specs: Iterable[TensorSpec]) -> Params:
    """Fetch some tensors of the current task's model, and no others.

    After the batched fetch of OpenFL's collaborators (its pull request 1575)::

        while flare.is_running():
            head = flare.fetch([flare.TensorSpec("head.weight", tags=("aggregated",))])

    They may be fetched as often as the code likes; :func:`receive` fetches the whole model.

    Args:
        specs: Their descriptions: a name; the round's number, from 0 as in ``current_round`` of a
            received model, or 0 for that of the task; and as tags none or ``aggregated``. They come
            without a loss in any case.

    Returns:
        Tensors (or arrays, if ``train.exchange_format`` is numpy) by name.

    Raises:
        ClientError: A spec is of another round, or of a report; or there is no task, or what comes
            is no model's own tensors, as with codecs.
        StreamingError: A tensor of a name is not there, or did not arrive.
    """
    return _current().fetch(list(specs))


def send(model: FLModel, clear_cache: bool = True) -> None:
    """Answer the current task, and wait until the server has fetched the update.

    A training task is answered with ``params``: dense tensors on any device or NumPy arrays of the
    received names, dtypes and shapes; or with ``file``, a safetensors file of such tensors, which
    must not be written to until this returns. Where sites outnumber workers, a file in the site's
    own folder is moved to the server's, unless it is open elsewhere, has other names, or the
    workflow reads the updates. Tensors stay in place while the server fetches them range by range.
    If sites share a process and the model is small, they are copied instead, and sent together with
    the updates of other sites. An evaluation is answered with ``metrics`` alone, and a task to
    submit a model with ``params`` or ``file``.

    Args:
        model: The answer.
        clear_cache: Whether to release the tensors of ``model`` and of the received model
            afterwards.

    Raises:
        ClientError: There is no task, or the answer lacks what the task asks for.
        LayoutError: A tensor cannot be streamed; the message names it.
    """
    _current().send(model, clear_cache)


def is_train() -> bool:
    """Return whether the current task is a training.

    Code that asks this, :func:`is_evaluate` or :func:`get_task_name` in a site's first task is sent
    evaluations of its own; see ``workflow.args.evaluate``.
    """
    return _current().asked_kind("evaluate") == "train"


def is_evaluate() -> bool:
    """Return whether the current task is an evaluation, answered with metrics.

    See :func:`is_train`.
    """
    return _current().asked_kind("evaluate") == "evaluate"


def is_submit_model() -> bool:
    """Return whether the task is to send the site's own model, as ``params``.

    Cross-site evaluation asks code for it that tells tasks apart; of code that does not ask this,
    the last model that was sent counts. The received model has no ``params``; its
    ``meta["submit_model_name"]`` is ``"best_model"``, as in NVFlare.
    """
    return _current().asked_kind("submit_model") == "submit_model"


def get_task_name() -> str | None:
    """Return the kind of the current task; None between tasks.

    That is ``"train"``, ``"evaluate"`` or ``"submit_model"``.
    """
    return _current().asked_kind("evaluate", "submit_model")


def get_site_name() -> str:
    """Return this site's name: one of ``clients.names``, or ``site-1`` and so on."""
    return _current().site


def get_job_id() -> str:
    """Name of the job."""
    return str(system_info()["job_name"])


def get_config() -> dict[str, Any]:
    """Facts about the run and this site that stay the same in every task."""
    return _current().constants()


def clear() -> None:
    """Forget the received model, so that its memory is free before the answer is made."""
    _current().clear()


def shutdown() -> None:
    """End the session: there are no more tasks for this script."""
    _current().shutdown()


def get_state_dir() -> Path:
    """Folder for the site's own files, which are kept from one training to the next.

    It holds the files that the site left there in its last training. Its content at the time of
    the answer is kept as a whole, even if the run is killed and resumed; changes made by an
    evaluation are discarded. The first call in a task copies the files, which takes time.

    Raises:
        ClientError: There is no task, or the files cannot be copied.
    """
    return _current().context.state_dir


def system_info() -> dict[str, Any]:
    """Facts about the run and this site.

    Returns:
        ``site_name``, ``site_index`` (its place among all sites, from 0), ``job_name`` (also as
        ``job_id``), ``clients`` (number of sites), ``total_rounds``, ``seed`` (of the job),
        ``site_args`` and ``model_args`` (arguments of this site, and of the model's factory),
        ``site_dir`` (the site's folder in the run directory; code works in ``work/`` there) and
        ``job_dir`` (the job file's folder, for files that belong to the job). During a task also
        ``task_seed`` (of this site in this task).
    """
    return _current().system_info()


def log(
    key: str, value: Any, data_type: Any = None, global_step: int | None = None, **others: Any
) -> None:
    """Record a value for the run's events and report, with site and round.

    Args:
        key: Name of the value.
        value: A number (also a scalar of NumPy or torch, or a bool) or text; or a mapping of such
            values, each of which is recorded as ``key/name``.
        data_type: Without effect; accepted for compatibility with NVFlare.
        global_step: Step of the site's own at which a chart shows the value, such as a count of
            batches; None for the round.
        others: Without effect, likewise.

    Raises:
        ClientError: The value is neither, the step is no int, or it is given as ``step``.
    """
    if "step" in others:
        raise _ClientError(f"log({key!r}) was given step; name it global_step")
    _current().log(key, value, global_step)


def work(units: float) -> None:
    """Declare how much work the current training is, before it begins: once a task.

    With ``time.clock = virtual`` a unit takes ``time.seconds_per_example`` on a device of speed 1,
    and the declared units stand in the place of the answer's number of examples. A server that
    knows them early waits for fewer sites before it goes on.

    Args:
        units: Number of units, at least 0, such as examples times epochs.

    Raises:
        ClientError: It is no such number, there is no task, or the work was declared before.
    """
    _current().work(units)


def deadline() -> TimeLeft:
    """Return how long the site may train in the current task, so that it answers in time.

    Where ``stragglers.policy = deadline``, an answer that comes later is left out, and one of a
    part of the work counts. Without a deadline, what it holds is infinite.

    Raises:
        ClientError: There is no task.
    """
    return _current().context.deadline
