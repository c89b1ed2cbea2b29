"""The settings of downloads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from flstream.model.layout import ALIGNMENT
from flstream.streaming.wire import MAX_CHUNK_BYTES, MAX_REQUESTS


def expect_seconds(name: str, value: object) -> None:
    """Refuse what is no time.

    Raises:
        ValueError: The value is not a number above 0; the message has its name.
    """
    try:
        is_time = isinstance(value, int | float) and float(value) > 0  # nor is NaN
    except OverflowError:
        is_time = False
    if not is_time:
        raise ValueError(f"{name} is {value!r}; give seconds above 0")


def expect_options(given: Iterable[str], known: type) -> None:
    """Refuse options that there are not, which a typed dictionary alone does not.

    Raises:
        TypeError: There is none of a name; the message has the nearest one.
    """
    for name in given:
        if name not in known.__annotations__:
            near = get_close_matches(name, known.__annotations__, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"there is no option {name!r}{hint}")


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a receiver's downloads.

    Attributes:
        chunk_size: Length in bytes of the longest frame, a multiple of 16 and at most 1 GiB; 0
            fetches the whole model serialised into one message.
        request_size: Bytes that one request covers, rounded down to whole chunks; at least 16. If
            it is less than a chunk, chunks are as short as it.
        window: Number of requests in flight, from 1 to 256.
        request_timeout: Seconds in which the sender has to answer one request.
        ping_after: Seconds of silence after which the sender is asked whether it lives.
        ping_timeout: Seconds of further silence after which the connection is dropped, long before
            the request times out.
        reuse: Whether what is at hand of a body is looked for, and not fetched. It is not where a
            body comes whole.

    Raises:
        ValueError: A setting is none of these; the message names it.
    """

    chunk_size: int = 2 << 20
    request_size: int = 64 << 20
    window: int = 2
    request_timeout: float = 600.0
    ping_after: float = 1.0
    ping_timeout: float = 5.0
    reuse: bool = False

    def __post_init__(self) -> None:
        sizes = self.chunk_size, self.request_size, self.window
        if any(type(size) is not int for size in sizes):
            raise ValueError(f"chunk_size, request_size and window are whole numbers, not {sizes}")
        if self.chunk_size % ALIGNMENT or not 0 <= self.chunk_size <= MAX_CHUNK_BYTES:
            raise ValueError(
                f"chunk_size is {self.chunk_size}; give a multiple of {ALIGNMENT} up to "
                f"{MAX_CHUNK_BYTES} bytes, or 0 for the whole model in one message"
            )
        if self.request_size < ALIGNMENT:
            raise ValueError(
                f"request_size is {self.request_size}; a request covers {ALIGNMENT} bytes at least"
            )
        if not 1 <= self.window <= MAX_REQUESTS:
            raise ValueError(f"window is {self.window}; give 1 to {MAX_REQUESTS} requests")
        for name in ("request_timeout", "ping_after", "ping_timeout"):
            expect_seconds(name, getattr(self, name))

    @property
    def frame_size(self) -> int:
        """Length in bytes of the longest frame, or 0 for the whole model at once."""
        return min(self.chunk_size, self.request_size // ALIGNMENT * ALIGNMENT)

    @property
    def bytes_a_request(self) -> int:
        """Bytes that a request covers, a whole number of frames."""
        return self.request_size // self.frame_size * self.frame_size
