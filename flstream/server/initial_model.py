"""Messages about the initial model, from the process that builds it to the server."""

from __future__ import annotations

import msgspec


class Built(msgspec.Struct, tag=True, frozen=True):
    """The checkpoint of round 0 is on disk.

    Attributes:
        bytes: Length of the model's body.
        tensors: Number of its tensors.
        digest: Digest of its body.
    """

    bytes: int
    tensors: int
    digest: str


class NotBuilt(msgspec.Struct, tag=True, frozen=True):
    """The initial model could not be made.

    Attributes:
        reason: One sentence that says why.
    """

    reason: str


BuildReport = Built | NotBuilt
"""What the builder process reports, once."""
