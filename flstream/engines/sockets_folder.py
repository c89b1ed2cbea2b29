"""The temporary folder of a run's processes, which has the sockets and pipes that start them."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import shutil
import tempfile

from flstream.errors import UsageError

FOLDER = "FLSTREAM_FOLDER"
"""Environment variable with the folder's path, which tells the fork server what to remove."""

# The longest path of a socket on Linux, without the byte that ends it.
_MOST_BYTES = 107
# What is put into the folder, with the slash before it: the socket's name is "listener-" and eight
# characters.
_NAME_BYTES = 18


def sockets_folder() -> str:
    """Return the path of the folder, which is made at the first call and ends with this process.

    Raises:
        UsageError: It cannot be made, or its path is too long for a socket.
    """
    try:
        folder: str = multiprocessing.util.get_temp_dir()
    except OSError as error:
        raise UsageError(
            f"no temporary folder can be made: {error.strerror}; set TMPDIR to one that can be "
            "written"
        ) from error
    excess = len(os.fsencode(folder)) + _NAME_BYTES - _MOST_BYTES
    if excess > 0:
        raise UsageError(
            f"the temporary folder {tempfile.gettempdir()} has too long a path for a socket, by "
            f"{excess} bytes; set TMPDIR to a shorter one"
        )
    return folder


def remove_with_this_process(folder: str) -> None:
    """Remove the folder when this process ends, whose launcher may have been killed before."""
    own = os.getpid()

    def remove() -> None:
        if os.getpid() == own:  # and not a process that a training script forked
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
