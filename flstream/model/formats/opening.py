"""Opening a checkpoint of any format by its name. Only regular files are opened."""

from __future__ import annotations

from pathlib import Path

from flstream.model.checkpoint import FileSource, regular_size
from flstream.model.formats.file import ARCHIVES, CheckpointFile


def open_checkpoint(path: Path) -> CheckpointFile:
    """Open a checkpoint: ``.safetensors``, ``.pt``, ``.pth``, ``.bin``, ``.npz``, or an index.

    An index is a ``.json`` file that names shards, as ``model.safetensors.index.json`` does. A file
    of any other name is opened as safetensors, such as a ``.tmp`` file. The tensors of ``.pt`` are
    mapped; of ``.npz``, one array at a time is in memory.

    Raises:
        CheckpointError: The file cannot be read, or is not sound; the message names it.
        LayoutError: It has a tensor that a body cannot hold; the message names both.
    """
    if path.name.lower().endswith(".json"):
        from flstream.model.formats.shards import open_shards

        regular_size(path)
        return open_shards(path, open_tensors)
    return open_tensors(path)


def open_tensors(path: Path) -> CheckpointFile:
    """Open a single file of tensors: see :func:`open_checkpoint`."""
    regular_size(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        from flstream.model.formats.npz import open_npz

        return open_npz(path)
    if suffix in ARCHIVES:
        from flstream.model.formats.torch_file import open_torch

        return open_torch(path)
    source = FileSource(path)
    header, size = source.header_bytes, source.layout.nbytes
    facts = [
        f"the header of {header} bytes lies within the file and is well-formed",
        "every tensor has the bytes that its dtype and shape take",
        f"the tensors cover the {size} bytes behind the header, with no overlap and no hole",
    ]
    metadata = source.metadata
    return CheckpointFile(
        path, "safetensors", source, metadata, header, header + size, (path,), facts
    )
