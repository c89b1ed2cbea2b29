"""Who is at the other end of a TCP connection: both sides prove that they have the same key.

The side that dialled proves first, so that whoever has no key learns nothing but a random number.
Neither proof can be used again: each covers a number that the other side has just drawn. A name, or
anything else, is said only afterwards. It keeps strangers out. What is sent later is neither hidden
nor signed: the digests of the protocol find accidents, and no attacker who changes bytes on the
line.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from typing import NamedTuple

from flstream.errors import UsageError

KEY_BYTES = 32
PROOF_BYTES = NONCE_BYTES = 32

# magic, version, role, id of the key, the dialler's random number
_GREETING = struct.Struct("<4sB3x16s8s32s")
_MAGIC, _VERSION = b"FLSA", 1
GREETING_BYTES = _GREETING.size


class StartToken(NamedTuple):
    """A secret that two processes share, each of which proves to the other that it has it.

    Its text, ``str(token)``, is 64 hexadecimal digits.

    Attributes:
        key: 256 random bits.
    """

    key: bytes

    @classmethod
    def new(cls) -> StartToken:
        """Draw a token."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> StartToken:
        """Read a token's text.

        Raises:
            UsageError: It is none.
        """
        try:
            key = bytes.fromhex(text.strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise UsageError(
                f"a key has {2 * KEY_BYTES} hexadecimal digits, and this text is none; copy all of "
                "it from where it was made"
            )
        return cls(key)

    @property
    def id(self) -> bytes:
        """Eight bytes that tell the token from others, and nothing of its key."""
        return hashlib.sha256(b"flstream token" + self.key).digest()[:8]

    def __str__(self) -> str:
        return self.key.hex()

    def __repr__(self) -> str:
        return f"StartToken({self.id.hex()})"  # not the secret, which logs would keep


class Greeting(NamedTuple):
    """The first bytes of the side that dials.

    Attributes:
        role: What it wants to be, at most 16 bytes.
        token_id: Which key it has.
        nonce: Its random number.
    """

    role: bytes
    token_id: bytes
    nonce: bytes

    @classmethod
    def new(cls, role: str, token: StartToken) -> Greeting:
        """Draw the number for a connection."""
        return cls(role.encode(), token.id, secrets.token_bytes(NONCE_BYTES))

    def pack(self) -> bytes:
        """Encode it."""
        return _GREETING.pack(_MAGIC, _VERSION, *self)

    @classmethod
    def parse(cls, data: bytes | bytearray) -> Greeting | None:
        """Decode it; None if it is none."""
        magic, version, role, token_id, nonce = _GREETING.unpack(data)
        if (magic, version) != (_MAGIC, _VERSION):
            return None
        return cls(role.rstrip(b"\0"), token_id, nonce)

    def proof(self, side: bytes, token: StartToken, answer: bytes, run: str) -> bytes:
        """Return what only a side with the key can know.

        Args:
            side: ``dials`` or ``accepts``, whose proof it is.
            token: The key.
            answer: Random number of the side that accepts.
            run: What both sides are part of.
        """
        covered = b"flstream 1 " + side + b"\0" + self.pack() + answer + run.encode()
        return hmac.new(token.key, covered, hashlib.sha256).digest()
