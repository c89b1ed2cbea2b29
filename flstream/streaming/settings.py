"""Settings of downloads, and limits on peers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from flstream.model.header import MAX_HEADER_BYTES
from flstream.model.layout import ALIGNMENT
from flstream.streaming.wire import MAX_CHUNK_BYTES

if TYPE_CHECKING:
    from flstream.job import Job
    from flstream.model.memory import Framework

# Seconds after which nobody waits any more who may wait as long as it takes.
_FOREVER = 1e9


def expect_seconds(name: str, value: object) -> None:
    """Refuse a value that is no time."""
    try:
        is_time = isinstance(value, int | float) and float(value) > 0  # nor is NaN
    except OverflowError:
        is_time = False
    if not is_time:
        raise ValueError(f"{name} is {value!r}; give seconds above 0")


def expect_options(options: Iterable[str], known: type) -> None:
    """Refuse unknown options, which a typed dictionary alone accepts."""
    for name in options:
        if name not in known.__annotations__:
            near = get_close_matches(name, known.__annotations__, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"there is no option {name!r}{hint}")


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a receiver's downloads.

    Attributes:
        chunk_size: Length in bytes of the longest frame, a multiple of 16 and at most 1 GiB; 0
            fetches the whole body in one.
        request_timeout: Seconds in which the sender has to answer a request, and to send each
            frame of one.
        ping_after: Seconds of silence after which the sender is asked whether it lives.
        ping_timeout: Seconds of further silence after which the connection is dropped, long before
            the request times out.
        reuse: Whether what is at hand of a body is looked for, by the digests of its blocks, and
            not fetched.
        direct: Whether processes of a run on one machine read what the other has by themselves.

    Raises:
        ValueError: A setting is none of these; the message names it.
    """

    chunk_size: int = 2 << 20
    request_timeout: float = 600.0
    ping_after: float = 1.0
    ping_timeout: float = 5.0
    reuse: bool = False
    direct: bool = True

    def __post_init__(self) -> None:
        size = self.chunk_size
        if type(size) is not int or size % ALIGNMENT or not 0 <= size <= MAX_CHUNK_BYTES:
            raise ValueError(
                f"chunk_size is {size!r}; give a multiple of {ALIGNMENT} up to {MAX_CHUNK_BYTES} "
                "bytes, or 0 for the whole body in one frame"
            )
        for name in ("request_timeout", "ping_after", "ping_timeout"):
            expect_seconds(name, getattr(self, name))


@dataclass(frozen=True)
class Limits:
    """Limits on what a channel's peer may cause, for a sender or a receiver.

    They are of one connection, so that many receivers may have as much each.

    Attributes:
        scratch_bytes: Bytes of a range in one frame, which a sender has to have in memory at once.
        layout_bytes: Bytes of the layout that a sender states.
        layout_tensors: Tensors of that layout.
        body_bytes: Bytes of the body that it describes.
    """

    scratch_bytes: int = 64 << 20
    layout_bytes: int = 8 << 20
    layout_tensors: int = 100_000
    body_bytes: int = 1 << 48

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number from 1")


DEFAULT_LIMITS = Limits()

RUN_LIMITS = Limits(
    scratch_bytes=sys.maxsize, layout_bytes=MAX_HEADER_BYTES, layout_tensors=sys.maxsize
)
"""Limits among the processes of a run, which trust each other, and whose models are of any size."""


def stream_settings(job: Job, framework: Framework) -> StreamSettings:
    """Return the settings with which a job's models are fetched.

    Args:
        job: The job.
        framework: Kind of values that the models are exchanged as, which selects the chunk size.
    """
    streaming = job.streaming
    links = job.links(job.clients.site_names).values()
    # On one machine, to compare takes longer than to read.
    is_far = bool(links) or not job.engine.is_local
    silence = max((link.silence for link in links), default=0.0)
    settings = StreamSettings(
        chunk_size=streaming.chunk_size(framework),
        request_timeout=streaming.streaming_per_request_timeout,
        ping_timeout=StreamSettings.ping_timeout + silence,
        reuse=streaming.reuse == "auto" and streaming.mode != "native" and is_far,
        direct=job.is_direct,
    )
    if job.engine.is_inline:  # whoever waits may have to wait for who sits in pdb, too
        return replace(settings, request_timeout=_FOREVER, ping_after=_FOREVER)
    return settings
