"""The model builder: a short-lived process that writes the initial model's checkpoint.

Building a module needs the whole model in memory, which the server must never have.
"""

from __future__ import annotations

import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flstream.client.alias import install as install_alias
from flstream.client.seeding import seed_everything
from flstream.errors import FlstreamError, ModelError
from flstream.job import Job, ModelSection
from flstream.job.code import find_named
from flstream.model.arranged import Arranged
from flstream.model.body import Source
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.model.order import ORDER, order_text
from flstream.runs.run_directory import RunDirectory
from flstream.server.initial_model import BuildReport, Built, NotBuilt
from flstream.simulation.child import end_with_peer, redirect_output
from flstream.telemetry.events import SERVER
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel


def builder_main(job: Job, run: RunDirectory, server: socket.socket) -> None:
    """Run the model builder's process: write the checkpoint, report the result, and end.

    Args:
        job: the job.
        run: the run directory.
        server: socket for the report to the server.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect_output(run.log("model-builder"))
    end_with_peer(server)
    channel = MessageChannel[BuildReport](PipeChannel(server, SERVER), SERVER, BuildReport)
    try:
        if job.train.alias is not None:
            install_alias()
        channel.send(build(job.model, job.seed, run.checkpoint(0)))
    except FlstreamError as error:
        channel.send(NotBuilt(str(error)))
    except Exception as error:
        traceback.print_exc()
        channel.send(NotBuilt(f"building the model failed: {type(error).__name__}: {error}"))


def build(model: ModelSection, seed: int, path: Path) -> Built:
    """Write the initial model of a job.

    Args:
        model: model section of the job, with a factory or a file with the weights.
        seed: seed for all random generators, set before the factory is called.
        path: path of the checkpoint to write.

    Returns:
        Size, number of tensors and digest of the model.

    Raises:
        ModelError: the factory failed, or returned something that is not a model.
        CheckpointError: the weights cannot be read, or the checkpoint cannot be written.
        LayoutError: a tensor of the model cannot be streamed.
    """
    metadata = {"format": "pt", "flstream.round": "0"}
    if model.initial is not None:
        given = FileSource(model.initial)
        source: Source = given if given.layout.is_canonical else Arranged(given)
        order = given.metadata.get(ORDER, "") if given.layout.is_canonical else ""
    else:
        assert model.factory is not None  # loading the job file checked this
        state = state_of(model.factory, model.args, seed)
        source = MemoryBody.of(state)
        order = order_text(source.layout, state)
    if order:
        metadata[ORDER] = order
    digest = write_checkpoint(path, source, metadata)
    return Built(source.layout.nbytes, len(source.layout.tensors), digest)


def state_of(
    factory: str, args: Mapping[str, Any], seed: int, device: str | None = None
) -> Mapping[str, Any]:
    """Call a model factory.

    Args:
        factory: name of the factory, as in a resolved job.
        args: keyword arguments of the factory.
        seed: seed for all random generators, set before the call.
        device: default device of new tensors; on ``"meta"`` they have no bytes. None for torch's
            own default.

    Returns:
        The tensors of the model, by name.

    Raises:
        ModelError: the factory failed, or returned something that is not a model.
    """
    import torch

    seed_everything(seed)
    try:
        make = _find(factory)
        with nullcontext() if device is None else torch.device(device):
            made = make(**args)
    except FlstreamError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelError(
            f"model.factory {factory} raised {type(error).__name__}: {error} "
            f"({where.filename}, line {where.lineno})"
        ) from error
    state = made.state_dict() if isinstance(made, torch.nn.Module) else made
    if not isinstance(state, Mapping):
        raise ModelError(
            f"model.factory {factory} returned a {type(made).__name__}; "
            "it must return a torch module or a dict of tensors"
        )
    return state


def _find(factory: str) -> Callable[..., Any]:
    found = find_named(factory)
    if not callable(found):
        where, _, name = factory.rpartition(":")
        raise ModelError(f"model.factory {factory}: {where} has no callable {name!r}")
    made: Callable[..., Any] = found
    return made
