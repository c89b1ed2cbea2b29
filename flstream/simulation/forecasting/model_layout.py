"""The layout of a job's initial model, determined without a run.

The layout of a model file is in its header. A factory is called in a short-lived process, first on
torch's meta device, where tensors have shapes and no bytes, so that a model may be larger than
memory. One that needs real bytes is called again, limited to the available memory.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from flstream.client.alias import install as install_alias
from flstream.engines.processes import ProcessHost
from flstream.errors import ChannelClosedError, FlstreamError, LayoutError, ModelError
from flstream.job import Job
from flstream.model.checkpoint import FileSource
from flstream.model.dtypes import code_of
from flstream.model.layout import Layout, parse_header
from flstream.model.memory import MemoryBody
from flstream.simulation.child import end_with_peer, redirect_output
from flstream.simulation.model_builder import state_of
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel
from flstream.units import format_bytes

if TYPE_CHECKING:
    import torch

_PROBE = "model-probe"
# Time for the process to end after it has answered or closed its socket.
_END_SECONDS = 5.0


class Described(msgspec.Struct, tag=True, frozen=True):
    """Reply of the process with the model's layout.

    Attributes:
        header: header of the model, as JSON.
    """

    header: bytes


class NotDescribed(msgspec.Struct, tag=True, frozen=True):
    """Reply of the process if the factory failed.

    Attributes:
        reason: error message.
        again: whether the factory may succeed in real memory.
    """

    reason: str
    again: bool


Description = Described | NotDescribed


def model_layout(job: Job) -> Layout:
    """Return the layout of a job's initial model.

    Raises:
        ModelError: the factory failed, or returned something that is not a model, or one that
            cannot be streamed.
        CheckpointError: the weights cannot be read.
    """
    if job.model.initial is not None:
        given = FileSource(job.model.initial).layout
        entries = ((spec.name, spec.dtype, spec.shape) for spec in given.tensors)
        return given if given.is_canonical else Layout.of(entries, given.aliases)
    with ProcessHost({}) as host:
        return built_layout(job, host)


def built_layout(job: Job, host: ProcessHost) -> Layout:
    """Return the layout of the model from a job's factory, called in a process of this host.

    Raises:
        ModelError: the factory failed, or returned something that is not a model, or one that
            cannot be streamed.
    """
    description = _describe(job, host, "meta")
    if isinstance(description, NotDescribed) and description.again:
        description = _describe(job, host, None)
    if isinstance(description, NotDescribed):
        raise ModelError(description.reason)
    return parse_header(description.header, "the model")[0]


def _describe(job: Job, host: ProcessHost, device: str | None) -> Description:
    """Call the factory in a process of its own, on a device (None for torch's default)."""
    ours, theirs = socket.socketpair()
    channel: MessageChannel[Description] = MessageChannel(
        PipeChannel(ours, "the model's process"), "the model's process", Description
    )
    try:
        with theirs:
            host.start(_PROBE, _probe_main, job, device, theirs)
        return channel.receive()
    except ChannelClosedError as error:
        host.wait_for(_PROBE, _END_SECONDS)
        code = host.exit_codes()[_PROBE] or 0
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
        lack = ", as if the machine had too little memory" if code == -signal.SIGKILL else ""
        raise ModelError(
            f"model.factory {job.model.factory}: the process that called it "
            f"{killed or f'ended with status {code}'}{lack}"
        ) from error
    finally:
        channel.close()


def _probe_main(job: Job, device: str | None, launcher: socket.socket) -> None:
    """Run the process: call the factory, send the layout of its model, and end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect_output(Path(os.devnull))
    end_with_peer(launcher)
    channel: MessageChannel[Description] = MessageChannel(
        PipeChannel(launcher, "the launcher"), "the launcher", Description
    )
    available = _limit_memory()
    if job.train.alias is not None:
        install_alias()
    try:
        channel.send(Described(_layout_on(job, device).plain_header[8:]))
    except Exception as error:
        # Code that works on other devices may fail on the meta device.
        again = device == "meta" and not isinstance(error, LayoutError)
        channel.send(NotDescribed(_sentence(job, error, available), again))


def _limit_memory() -> int:
    """Limit this process to the available memory, so that it cannot exhaust the machine's.

    Returns:
        The available memory in bytes.
    """
    available = psutil.virtual_memory().available
    used = psutil.Process().memory_info().data
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = used + available
    if hard != resource.RLIM_INFINITY:  # which only root may raise
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    return available


def _layout_on(job: Job, device: str | None) -> Layout:
    factory = job.model.factory
    assert factory is not None  # loading the job file checked this
    state = state_of(factory, job.model.args, job.seed, device)
    if device == "meta" and any(getattr(value, "is_meta", False) for value in state.values()):
        return _meta_layout(state)
    return MemoryBody.of(state).layout


def _meta_layout(state: Mapping[str, Any]) -> Layout:
    """Return the layout of tensors on the meta device; names with equal views are tied."""
    if not all(getattr(value, "is_meta", False) for value in state.values()):
        raise ModelError("some of its tensors are not on the meta device")
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    kept: dict[tuple[object, ...], str] = {}
    ties = {}
    for name in sorted(state):
        value: torch.Tensor = state[name]
        code = code_of(value, name)
        place = (value.untyped_storage()._cdata, value.storage_offset(), value.stride())
        first = kept.setdefault((*place, value.shape, code), name) if value.numel() else name
        if first == name:
            entries.append((name, code, tuple(value.shape)))
        else:
            ties[name] = first
    return Layout.of(entries, ties)


def _sentence(job: Job, error: Exception, available: int) -> str:
    message = str(error)
    if isinstance(error, MemoryError) or "allocate memory" in message:
        return (
            f"model.factory {job.model.factory}: the model does not fit into the "
            f"{format_bytes(available)} of memory that are available; make it smaller, or free "
            "memory"
        )
    if isinstance(error, FlstreamError):
        return message
    return f"model.factory {job.model.factory}: {type(error).__name__}: {message}"
