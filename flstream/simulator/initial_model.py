"""Makes round 0's checkpoint, in a process of its own that ends with it.

Building a module needs the whole model in memory. The server must not, so it does not do this.
"""

from __future__ import annotations

import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from flstream.client.seeding import seed_everything
from flstream.errors import FlstreamError, ModelError
from flstream.job import Model
from flstream.job.code import find_named
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.simulator.child import end_with_peer, redirect_output
from flstream.simulator.files.run_directory import RunDirectory
from flstream.telemetry.events import SERVER
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel


class Built(msgspec.Struct, tag=True, frozen=True):
    """The checkpoint is there."""

    bytes: int
    tensors: int
    digest: str


class NotBuilt(msgspec.Struct, tag=True, frozen=True):
    """It could not be made, and why."""

    reason: str


BuildReport = Built | NotBuilt


def builder_main(model: Model, seed: int, run: RunDirectory, server: socket.socket) -> None:
    """The builder process: write the checkpoint, report, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect_output(run.log("model-builder"))
    end_with_peer(server)
    channel = MessageChannel[BuildReport](PipeChannel(server, SERVER), SERVER, BuildReport)
    try:
        channel.send(build(model, seed, run.checkpoint(0)))
    except FlstreamError as error:
        channel.send(NotBuilt(str(error)))
    except Exception as error:
        traceback.print_exc()
        channel.send(NotBuilt(f"building the model failed: {type(error).__name__}: {error}"))


def build(model: Model, seed: int, path: Path) -> Built:
    """Write the initial model that a job asks for.

    Args:
        model: the job's section: a factory, or a file with the weights.
        seed: set before the factory is called.
        path: of the checkpoint to write.

    Raises:
        ModelError: the factory failed, or gave back something that is not a model.
        CheckpointError: the given weights cannot be read, or the checkpoint cannot be written.
        LayoutError: a tensor of the model cannot be streamed.
    """
    metadata = {"format": "pt", "flstream.round": "0"}
    if model.initial is not None:
        given = FileSource(model.initial)
        if given.layout.is_canonical:
            digest = write_checkpoint(path, given, metadata)
            return Built(given.layout.nbytes, len(given.layout.tensors), digest)
        import safetensors.torch

        tensors = safetensors.torch.load_file(model.initial)
        tensors |= {alias: tensors[name] for alias, name in given.layout.aliases.items()}
        body = MemoryBody.of(tensors)
    else:
        assert model.factory is not None  # the job file was refused otherwise
        body = MemoryBody.of(state_of(model.factory, model.args, seed))
    digest = write_checkpoint(path, body, metadata)
    return Built(body.layout.nbytes, len(body.layout.tensors), digest)


def state_of(
    factory: str, args: Mapping[str, Any], seed: int, device: str | None = None
) -> Mapping[str, Any]:
    """Call a model factory, and return the tensors that it made by name.

    Args:
        factory: as a resolved job names it.
        args: its keyword arguments.
        seed: set before it is called.
        device: where it makes tensors if it does not say; on ``"meta"`` they have no bytes.

    Raises:
        ModelError: it failed, or gave back something that is not a model.
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
