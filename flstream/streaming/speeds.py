"""Rolling estimates of what a channel costs, by which a receiver decides what to compare."""

from __future__ import annotations

from dataclasses import dataclass

# Share of a body from which on it is compared, whatever that costs: bytes are what is paid for.
_WORTH = 0.5
# Bytes a second that are assumed before any were measured, of a pipe and of both sides' digests.
_PIPE_SPEED = 4e9
_DIGEST_SPEED = 4e9
# Weight of the last measurement in the rolling estimates.
_NEWEST = 0.5
# Bytes below which a download says little about the channel's speed.
_MEASURED_BYTES = 4 << 20


@dataclass
class Speeds:
    """Rolling estimates of what sending and comparing cost on a channel.

    Attributes:
        sending: Bytes a second that are downloaded.
        digesting: Bytes a second that are compared by their digests.
    """

    sending: float = _PIPE_SPEED
    digesting: float = _DIGEST_SPEED

    def sent(self, count: int, seconds: float) -> None:
        """Note how long a download of so many bytes took."""
        if count >= _MEASURED_BYTES and seconds > 0:
            self.sending += _NEWEST * (count / seconds - self.sending)

    def digested(self, count: int, seconds: float) -> None:
        """Note how long it took to compare so many bytes."""
        if count >= _MEASURED_BYTES and seconds > 0:
            self.digesting += _NEWEST * (count / seconds - self.digesting)

    def worth(self, share: float) -> bool:
        """Return whether a body of which about this share is here is to be compared."""
        return share >= min(self.sending / self.digesting, _WORTH)
