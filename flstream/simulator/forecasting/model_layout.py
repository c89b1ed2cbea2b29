"""Finds out what a job's model is like without a run, in processes of their own that end with it.

A model file's header says it. A factory is called on torch's meta device first, where tensors have
shapes and no bytes: so a model larger than memory can be described. One that needs real bytes is
called again, with no more memory than the machine has to give.
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

from flstream.errors import ChannelClosedError, FlstreamError, LayoutError, ModelError
from flstream.job import Job
from flstream.model.checkpoint import FileSource
from flstream.model.dtypes import code_of
from flstream.model.layout import Layout, parse_header
from flstream.model.memory import MemoryBody
from flstream.simulator.child import end_with_peer, redirect_output
from flstream.simulator.initial_model import state_of
from flstream.simulator.processes import ProcessHost
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel
from flstream.units import format_bytes

if TYPE_CHECKING:
    import torch

_PROBE = "model-probe"
# How long its process may take to end once it has answered or broken off.
_END_SECONDS = 5.0


class Described(msgspec.Struct, tag=True, frozen=True):
    """The model's header, as JSON."""

    header: bytes


class NotDescribed(msgspec.Struct, tag=True, frozen=True):
    """Why there is none, and whether the factory may do better with real memory."""

    reason: str
    again: bool


Description = Described | NotDescribed


def model_layout(job: Job) -> Layout:
    """The layout of the model that a job begins with.

    Raises:
        ModelError: the factory failed, or gave back something that is not a model, or one that
            cannot be streamed.
        CheckpointError: the given weights cannot be read.
    """
    if job.model.initial is not None:
        given = FileSource(job.model.initial).layout
        entries = ((spec.name, spec.dtype, spec.shape) for spec in given.tensors)
        return given if given.is_canonical else Layout.of(entries, given.aliases)
    with ProcessHost({}) as host:
        return built_layout(job, host)


def built_layout(job: Job, host: ProcessHost) -> Layout:
    """The layout of what a job's factory makes, in a process of this host.

    Raises:
        ModelError: the factory failed, or gave back something that is not a model, or one that
            cannot be streamed.
    """
    description = _describe(job, host, "meta")
    if isinstance(description, NotDescribed) and description.again:
        description = _describe(job, host, None)
    if isinstance(description, NotDescribed):
        raise ModelError(description.reason)
    return parse_header(description.header, "the model")[0]


def _describe(job: Job, host: ProcessHost, device: str | None) -> Description:
    """Have a process of its own call the factory."""
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
    """The process: call the factory, tell what it made, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect_output(Path(os.devnull))
    end_with_peer(launcher)
    channel: MessageChannel[Description] = MessageChannel(
        PipeChannel(launcher, "the launcher"), "the launcher", Description
    )
    available = _limit_memory()
    try:
        channel.send(Described(_layout_on(job, device).plain_header[8:]))
    except Exception as error:
        # On the meta device anything may fail that works elsewhere.
        again = device == "meta" and not isinstance(error, LayoutError)
        channel.send(NotDescribed(_sentence(job, error, available), again))


def _limit_memory() -> int:
    """Let this process have what memory is available, and not have others killed for more."""
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
    assert factory is not None  # the job file was refused otherwise
    state = state_of(factory, job.model.args, job.seed, device)
    if device == "meta" and any(getattr(value, "is_meta", False) for value in state.values()):
        return _meta_layout(state)
    return MemoryBody.of(state).layout


def _meta_layout(state: Mapping[str, Any]) -> Layout:
    """The layout of tensors that have no bytes; ties are names that show the same elements."""
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
    said = str(error)
    if isinstance(error, MemoryError) or "allocate memory" in said:
        return (
            f"model.factory {job.model.factory}: the model does not fit into the "
            f"{format_bytes(available)} of memory that are available; make it smaller, or free "
            "memory"
        )
    if isinstance(error, FlstreamError):
        return said
    return f"model.factory {job.model.factory}: {type(error).__name__}: {said}"
