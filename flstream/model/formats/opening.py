"""Opening a checkpoint of any format by its name. Only regular files are opened."""

from __future__ import annotations

from pathlib import Path

from flstream.errors import CheckpointError
from flstream.model.checkpoint_header import regular_size
from flstream.model.formats.file import CheckpointFile

_TORCH = (".pt", ".pth", ".bin")


def open_checkpoint(path: Path) -> CheckpointFile:
    """Open a checkpoint: ``.safetensors``, ``.pt``, ``.pth``, ``.bin``, ``.npz``, or an index.

    An index is a ``.json`` file that names shards, as ``model.safetensors.index.json`` does. A file
    of any other name is opened as safetensors, such as a ``.tmp`` file.

    Raises:
        CheckpointError: The file cannot be read, or is not sound; the message names it.
    """
    name = path.name.lower()
    if name.endswith(".json"):
        check_file(path)
        from flstream.model.formats.shards import ShardedFile

        return ShardedFile(path, open_tensors)
    return open_tensors(path)


def open_tensors(path: Path) -> CheckpointFile:
    """Open a single file of tensors: see :func:`open_checkpoint`."""
    check_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        from flstream.model.formats.npz import NpzFile

        return NpzFile(path)
    if suffix in _TORCH:
        from flstream.model.formats.torch_file import TorchFile

        return TorchFile(path)
    from flstream.model.formats.safetensors_file import SafetensorsFile

    return SafetensorsFile(path)


def check_file(path: Path) -> None:
    """Refuse anything but a regular file that is not empty.

    Raises:
        CheckpointError: The path is not such a file; the message says what it is.
    """
    regular_size(path)
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}; check the path and its permissions"
        ) from error
    if empty:
        raise CheckpointError(f"{path} is empty; fetch the file again or save it anew")
