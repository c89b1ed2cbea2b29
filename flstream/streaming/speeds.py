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
# Share of looks that were of use below which the next is expected to be in vain: three in a row. A
# model that is evaluated and then trained is there every second time.
_LEAST_HITS = 1 / 4
# Share of the time to send a body that a look in vain may take, again and again.
_UNNOTICED = 0.01
# Where it takes more, one body of so many is looked for all the same.
_SELDOM = 8


@dataclass
class Speeds:
    """Rolling estimates of what sending and comparing cost on a channel.

    Attributes:
        sending: Bytes a second that are downloaded.
        digesting: Bytes a second that are compared by their digests.
        hits: Share of the bodies of which enough was here when they were looked for.
        looking: Seconds that it took to find that out.
        passed_over: Number of bodies that were not looked for.
    """

    sending: float = _PIPE_SPEED
    digesting: float = _DIGEST_SPEED
    hits: float = 1.0
    looking: float = 0.0
    passed_over: int = 0

    def sent(self, count: int, seconds: float) -> None:
        """Note how long a download of so many bytes took."""
        if count >= _MEASURED_BYTES and seconds > 0:
            self.sending += _NEWEST * (count / seconds - self.sending)

    def digested(self, count: int, seconds: float) -> None:
        """Note how long it took to compare so many bytes."""
        if count >= _MEASURED_BYTES and seconds > 0:
            self.digesting += _NEWEST * (count / seconds - self.digesting)

    def looked(self, share: float, seconds: float) -> None:
        """Note which share of a body's blocks was here, and how long it took to find out."""
        self.hits += _NEWEST * (self.worth(share) - self.hits)
        self.looking += _NEWEST * (seconds - self.looking)

    def is_due(self, count: int) -> bool:
        """Return whether a body of so many bytes is to be looked for at all.

        It is, unless nothing was here lately, and to find that out takes a noticeable part of the
        time that the body takes: over a link with a long latency, or of a short body.
        """
        is_unnoticed = self.looking * self.sending <= _UNNOTICED * count
        if self.hits >= _LEAST_HITS or is_unnoticed:
            return True
        self.passed_over += 1
        return self.passed_over % _SELDOM == 0

    def worth(self, share: float) -> bool:
        """Return whether a body of which about this share is here is to be compared."""
        return share >= min(self.sending / self.digesting, _WORTH)
