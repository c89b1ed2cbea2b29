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
from pathlib import Path

import msgspec
import psutil

from flstream.client.alias import install as install_alias
from flstream.engines.processes import ProcessHost
from flstream.errors import ChannelClosedError, FlstreamError, LayoutError, ModelError
from flstream.job import Job
from flstream.job.code import make_importable
from flstream.model.fitted import Arranged, Differences
from flstream.model.formats.opening import open_checkpoint
from flstream.model.layout import Layout, parse_header
from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output
from flstream.simulation.factory import layout_on
from flstream.simulation.model_builder import expect_fit
from flstream.text import signal_name
from flstream.transport.messages import MessageChannel
from flstream.transport.sockets import SocketChannel
from flstream.units import format_bytes

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
            cannot be streamed; or the file's tensors are not those of the factory's model.
        CheckpointError: the weights cannot be read.
    """
    given = None if job.model.initial is None else open_checkpoint(job.model.initial)
    if given is not None and job.model.factory is None:
        return given.layout if given.layout.is_canonical else Arranged(given).layout
    with ProcessHost({}) as host:
        layout = built_layout(job, host)
    if given is not None:
        expect_fit(job.model, layout, given.layout)
    return layout


def initial_differences(job: Job, layout: Layout) -> str:
    """Return what a job's file of initial weights and its model do not share; empty if nothing.

    Args:
        job: The job.
        layout: Layout of its model.

    Raises:
        CheckpointError: The weights cannot be read.
    """
    if job.model.initial is None or job.model.factory is None:
        return ""
    differences = Differences.between(layout, open_checkpoint(job.model.initial).layout)
    return differences.sentence(job.model.initial.name) if differences else ""


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
        SocketChannel(ours, "the model's process"), "the model's process", Description
    )
    try:
        with theirs:
            host.start(_PROBE, _probe_main, job, device, theirs)
        return channel.receive()
    except ChannelClosedError as error:
        code = host.exit_code(_PROBE, _END_SECONDS) or 0
        killed = f"was killed by {signal_name(-code)}" if code < 0 else ""
        lack = ", as if the machine had too little memory" if code == -signal.SIGKILL else ""
        raise ModelError(
            f"model.factory {job.model.factory}: the process that called it "
            f"{killed or f'ended with status {code}'}{lack}"
        ) from error
    finally:
        channel.close()


def _probe_main(job: Job, device: str | None, launcher: socket.socket) -> None:
    """Run the process: call the factory, send the layout of its model, and end."""
    ignore_interrupts()
    redirect_output(Path(os.devnull))
    end_with_peer(launcher)
    channel: MessageChannel[Description] = MessageChannel(
        SocketChannel(launcher, "the launcher"), "the launcher", Description
    )
    available = _limit_memory()
    if job.train.alias is not None:
        install_alias()
    make_importable(job.folder)
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
    assert job.model.factory is not None  # loading the job file checked this
    return layout_on(job.model.factory, job.model.args, job.seed, device)[0]


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
