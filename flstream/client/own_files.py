"""Tensors and states that a helper of the client API keeps in a site's own files."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.errors import ClientError
from flstream.model.checkpoint import BodyFile, FileSource, file_to_overwrite
from flstream.model.composed import composed
from flstream.model.copy import copy
from flstream.model.descriptors import open_to_write
from flstream.model.memory import MemoryBody
from flstream.model.source import Source

if TYPE_CHECKING:
    import torch

    from flstream.client.session import Session

OWN_FOLDER = ".flstream"
"""Folder in a site's state for what is kept there without the training code's doing."""


def kept_path(session: Session, name: str, suffix: str) -> Path:
    """Return the path of a file of the current task's site, or of the site's own model."""
    own = ".own" if session.own_origin is not None else ""
    return session.context.state_dir / OWN_FOLDER / f"{name}{own}{suffix}"


def save_state(path: Path, state: object, what: str, remedy: str) -> None:
    """Write a state of tensors and plain values to a file.

    Raises:
        ClientError: It has more than these, and could not be loaded; the message says in ``what``,
            and what helps.
    """
    import torch

    path.parent.mkdir(exist_ok=True)
    torch.save(state, path)
    try:
        torch.load(path, weights_only=True, mmap=True)  # which reads no tensor
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise ClientError(
            f"{what} has more than tensors and plain values; {remedy}: {reason}"
        ) from error


def load_state(path: Path) -> Any:
    """Load a state that :func:`save_state` wrote."""
    import torch

    return torch.load(path, weights_only=True)


class KeptTensors:
    """Tensors by name, in a file of the site's state."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def received(cls, state_dir: Path) -> KeptTensors:
        """Return the tensors that a site received last, which training may overwrite in memory."""
        return cls(state_dir / OWN_FOLDER / "received.safetensors")

    @classmethod
    def of(cls, session: Session, name: str) -> KeptTensors:
        """Return the tensors of a name in the current task, or of the site's own model."""
        return cls(kept_path(session, name, ".safetensors"))

    def read_like(self, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the kept tensors, on the devices and in the dtypes of others by name."""
        if not self.path.exists():
            return {name: tensor.new_zeros(tensor.shape) for name, tensor in like.items()}
        source = self.source()
        body = MemoryBody.allocate(source.layout)
        copy(source, body)
        tensors: dict[str, torch.Tensor] = dict(body.tensors)  # type: ignore[arg-type]
        for name, tensor in like.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise ClientError(
                    f"the site has kept no tensor {name!r} of shape {list(tensor.shape)} in "
                    f"{self.path.name}; train the same module in each task"
                )
        return {name: tensors[name].to(tensor) for name, tensor in like.items()}

    def read_into(self, tensors: Mapping[str, Any]) -> None:
        """Copy kept tensors over the tensors of their names, if any were kept."""
        if not self.path.exists():
            return
        source = self.source()
        specs = {spec.name: spec for spec in source.layout.tensors if spec.name in tensors}
        body = MemoryBody.of({name: tensors[name] for name in specs}, writable=True, tied={})
        for name, spec in specs.items():
            received = body.layout.by_name[name]
            if (received.dtype, received.shape) != (spec.dtype, spec.shape):
                raise ClientError(
                    f"tensor {name!r} is {received.dtype} {list(received.shape)} in the received "
                    f"model, and {spec.dtype} {list(spec.shape)} in the site's own version; start "
                    "a new run for another model"
                )
        copy(composed({name: (source, spec) for name, spec in specs.items()}), body)

    def write(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep tensors in place of earlier ones."""
        detached = {name: tensor.detach() for name, tensor in tensors.items()}
        self.write_body(MemoryBody.of(detached, tied={}))

    def write_body(self, body: Source) -> None:
        """Keep the tensors of a body in place of earlier ones."""
        # The state as a whole is made durable, under the digest of its content.
        with closing(file_to_overwrite(self.path, body.layout, {"format": "pt"})) as file:
            copy(body, file)

    def write_part(self, part: Source) -> None:
        """Keep some tensors in place of those of their names that were kept before.

        Raises:
            ClientError: None were kept.
        """
        if not self.path.is_file():
            raise ClientError(
                f"{self.path} is gone, which has the model as it was received; put it back, and "
                "go on with --resume"
            )
        with closing(BodyFile(str(self.path), open_to_write(self.path, keep=True))) as file:
            for name in part.layout.by_name:
                file.write_tensor(name, part)

    def source(self) -> FileSource:
        """Open the file."""
        return FileSource(self.path)
