"""The file with the key of a run, by which its nodes are told from strangers."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flstream.errors import UsageError
from flstream.transport.authentication import StartToken


@contextmanager
def new_key_file(path: Path) -> Iterator[StartToken]:
    """Draw a key, and keep it in a new file that nobody else can read, until the block ends.

    The file has its name only once all of it is there, for others wait for it.

    Raises:
        UsageError: There is a file of that name, or it cannot be written.
    """
    token = StartToken.new()
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "w") as file:
                file.write(f"{token}\n")
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
    except FileExistsError as error:
        raise UsageError(
            f"the key file {path} is there already, perhaps of a run that was killed; remove it if "
            "no run uses it, or name another one (engine.key_file)"
        ) from error
    except OSError as error:
        raise UsageError(
            f"the key file {path} cannot be written: {error.strerror}; name another one "
            "(engine.key_file)"
        ) from error
    try:
        yield token
    finally:
        with suppress(OSError):
            path.unlink()


def read_key_file(path: Path) -> StartToken | None:
    """Read the key; None if there is no such file yet.

    Raises:
        UsageError: The file cannot be read, has no key in it, or can be read by others.
    """
    try:
        # Without waiting, if it is a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise UsageError(f"the key file {path} is no regular file; name another one")
            text = file.read(1024)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        flaw = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"the key file {path} cannot be read: {flaw}") from error
    if mode & 0o077:
        raise UsageError(
            f"the key file {path} can be read by others, so the key may be known; run "
            f"chmod 600 {path} if it is not, or make another"
        )
    return StartToken.parse(text)
