"""A version of a site's state on its way between the run directory and a node without it.

The version travels as one blob, an archive of its folder. It lies in files without names, so that
nothing is left of it whatever ends the processes, where the file system has such files.
"""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO

from flstream.errors import ClientError, RefusedError
from flstream.model.checkpoint import FileSource, open_blob
from flstream.model.folder_archive import pack_folder
from flstream.model.folder_content import folder_bytes
from flstream.model.layout import Layout
from flstream.model.unnamed_file import UnnamedFile
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.text import error_text, printable_path
from flstream.units import format_bytes

MOST_STATE_BYTES = 1 << 30
"""Most bytes of the files of a state that travels."""

_BUFFER_BYTES, _CHUNK_BYTES = 1 << 20, 2 << 20
# Bytes of an archive beyond those of the files: headers, and what a large number of names takes.
_MOST_BESIDE = 256 << 20


def pack_state(path: str, site: str) -> FileSource:
    """Return the archive of a version of a site's state, as a blob that can be offered.

    Args:
        path: Path of the version's folder.
        site: Name of the site.

    Raises:
        ClientError: It is too large to travel, or cannot be read or written; the message says why.
        CheckpointError: The archive cannot be opened.
    """
    try:
        nbytes = folder_bytes(path)
        if nbytes > MOST_STATE_BYTES:
            raise ClientError(
                f"the state of {site} has {format_bytes(nbytes)}, and {MOST_STATE_BYTES >> 30} GiB "
                "at most travels from a node that does not see the run directory; keep less in "
                "state_dir, or put the run where all nodes see it (--run-dir)"
            )
        with tempfile.TemporaryFile(dir=os.path.dirname(path), buffering=_BUFFER_BYTES) as file:
            pack_folder(path, file)
            file.flush()
            return open_blob(Path(f"/proc/self/fd/{file.fileno()}"))
    except OSError as error:
        raise ClientError(
            f"the state of {site} cannot be packed in {printable_path(os.path.dirname(path))} on "
            f"{platform.node()}: {error_text(error)}"
        ) from error


def receive_state(
    receiver: Receiver, token: bytes, settings: StreamSettings, folder: Path
) -> IO[bytes]:
    """Download an archive that :func:`pack_state` has made; see :func:`unpack_folder`.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the archive.
        settings: How models are streamed. A state is pulled in chunks, whatever is done with them.
        folder: Folder of the file system that has the bytes meanwhile.

    Returns:
        A file without a name, at its beginning.

    Raises:
        StreamingError: It did not arrive, or is too large.
        CheckpointError: The disk has no room for it.
    """

    def sink_for(layout: Layout) -> UnnamedFile:
        if layout.names != ["blob"] or layout.nbytes > MOST_STATE_BYTES + _MOST_BESIDE:
            raise RefusedError(f"{receiver.peer} offers something else than the state of a site")
        return UnnamedFile(layout, folder)

    # In one message, it would be in memory as a whole.
    pulled = replace(settings, chunk_size=settings.chunk_size or _CHUNK_BYTES)
    sink, _ = download(receiver, token, pulled, sink_for)
    return sink.open()
