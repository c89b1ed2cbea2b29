"""A model in a safetensors file, whose tensors training code reads and writes one by one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flstream.client.session import present
from flstream.errors import CheckpointError, ClientError
from flstream.model.checkpoint import BodyFile
from flstream.model.composed import composed
from flstream.model.copy import copy
from flstream.model.descriptors import open_to_write
from flstream.model.layout import TensorInfo
from flstream.model.memory import MemoryBody

if TYPE_CHECKING:
    import torch


class FileTensors(MutableMapping[str, "torch.Tensor"]):
    """Tensors of a file by name: to read one copies it, to assign one writes it.

    Tied names stand for one tensor.
    """

    def __init__(self, file: BodyFile, path: Path) -> None:
        self._open_file: BodyFile | None = file
        self._path = path

    def close(self) -> None:
        """Close the file, whose descriptor may then be another file's."""
        self._file.close()
        self._open_file = None

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a copy of a tensor, in memory of its own."""
        alone = composed({name: (self._file, self._spec(name))})
        memory = MemoryBody.allocate(alone.layout)
        copy(alone, memory)
        return cast("torch.Tensor", memory.tensors[name])

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        """Write a tensor of the same dtype and shape to its place in the file."""
        if not hasattr(tensor, "dtype"):
            raise ClientError(
                f"tensor {name!r} of {self._path} was assigned a {type(tensor).__name__}; assign a "
                "tensor of the same dtype and shape"
            )
        spec, memory = self._spec(name), MemoryBody.of({name: tensor})
        assigned = memory.layout.by_name[name]
        if (assigned.dtype, assigned.shape) != (spec.dtype, spec.shape):
            raise ClientError(
                f"tensor {name!r} of {self._path} is {spec.dtype} of shape {list(spec.shape)}, and "
                f"was assigned {assigned.dtype} of shape {list(assigned.shape)}; "
                "assign one that fits"
            )
        self._file.write_tensor(name, memory)

    def __delitem__(self, name: str) -> None:
        """Refuse to remove a tensor."""
        raise ClientError(f"tensor {name!r} stays in {self._path}, whose names are fixed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.layout.names)

    def __len__(self) -> int:
        return len(self._file.layout.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._file.layout.find(name) is not None

    @property
    def _file(self) -> BodyFile:
        if self._open_file is None:
            raise ClientError(
                f"the block of edit({self._path}) is over; read and assign its tensors within it"
            )
        return self._open_file

    def _spec(self, name: str) -> TensorInfo:
        spec = self._file.layout.find(name)
        if spec is None:
            raise ClientError(
                f"there is no tensor {name!r} in {self._path}, whose names are fixed; it has "
                f"{', '.join(list(self)[:3])} and so on"
            )
        return spec


@contextmanager
def edit(path: str | os.PathLike[str]) -> Iterator[MutableMapping[str, torch.Tensor]]:
    """Open a safetensors file to read and write its tensors in place, one by one.

    Nothing but an assignment writes to the file, and each is written when it is made. Memory is
    that of the tensors that are read::

        with flare.edit(model.file) as tensors:
            tensors["head.weight"] = tensors["head.weight"] * 0.5

    Args:
        path: Path of the file, such as ``file`` of a received model; in a task, a relative one is
            below the site's own working folder.

    Yields:
        A mutable mapping of tensors by name, with fixed names. Reading returns a copy on the CPU,
        and assigning takes a tensor of the same dtype and shape, on any device.

    Raises:
        CheckpointError: It is no sound safetensors file, cannot be written, or is being written by
            another process.
        ClientError: A name is none of the file's, or a tensor does not fit; the message names it.
    """
    session = present()
    if session is not None and session.kind is not None:
        place = session.context.written_path(path)
    else:
        place = Path(path).absolute()
    try:
        status = place.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise CheckpointError(
                f"{place} is a link, or has other names that would change, too; edit a copy of it"
            )
        fd = open_to_write(place, keep=True)
    except OSError as error:
        raise CheckpointError(f"{place} cannot be edited: {error.strerror}") from error
    tensors = FileTensors(BodyFile(str(place), fd), place)
    try:
        yield tensors
    finally:
        tensors.close()
