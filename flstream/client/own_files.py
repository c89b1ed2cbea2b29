"""Tensors that a helper of the client API keeps in a site's state, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flstream.client import session
from flstream.client.personal import OWN_FOLDER
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy
from flstream.model.memory import MemoryBody

if TYPE_CHECKING:
    import torch


class KeptTensors:
    """Tensors by name, with some text beside them, in a file of the site's state.

    A model of the site's own (``meta["personal"]``) has a file of its own.

    Args:
        name: What the tensors are, which names the file.
    """

    def __init__(self, name: str) -> None:
        here = session.current()
        received = here.received
        beside = received is not None and received.meta.get("personal")
        self._folder: Path = here.state_dir / OWN_FOLDER
        self._path = self._folder / f"{name}{'.beside' if beside else ''}.safetensors"

    def read(self) -> tuple[dict[str, torch.Tensor], Mapping[str, str]] | None:
        """Return the tensors and the text by key; None before anything was kept.

        Raises:
            CheckpointError: The file cannot be read.
        """
        if not self._path.exists():
            return None
        source = FileSource(self._path)
        body = MemoryBody.allocate(source.layout)
        copy(source, body)
        tensors: dict[str, torch.Tensor] = dict(body.tensors)  # type: ignore[arg-type]
        return tensors, source.metadata

    def write(self, tensors: Mapping[str, torch.Tensor], text: Mapping[str, str]) -> None:
        """Keep tensors in the place of those before.

        Raises:
            CheckpointError: The file cannot be written.
        """
        body = MemoryBody.of({name: each.detach() for name, each in tensors.items()}, tied={})
        # The state as a whole is made durable, under the digest of its content.
        with FileSink(self._path, body.layout, text, durable=False) as sink:
            copy(body, sink)
            sink.finish()
