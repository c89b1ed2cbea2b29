"""The model as a site has received it, tensor by tensor, in a file of the site's own state."""

from __future__ import annotations

from pathlib import Path

from flstream.client.own_files import OWN_FOLDER
from flstream.errors import ClientError
from flstream.model.checkpoint import BodyFile, FileSource, file_to_overwrite
from flstream.model.copy import copy
from flstream.model.descriptors import open_to_write
from flstream.model.source import Source


class ReceivedFile:
    """The tensors that a site received last, which training may have overwritten in memory.

    Args:
        state_dir: Folder of the site's own files in its task.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / OWN_FOLDER / "received.safetensors"

    def begin(self, model: Source) -> None:
        """Keep a whole model."""
        file = file_to_overwrite(self._path, model.layout, {})
        try:
            copy(model, file)
        finally:
            file.close()

    def take(self, part: Source) -> None:
        """Keep some of the model's tensors, in the place of those that were received before.

        Raises:
            ClientError: No whole model was received before.
        """
        if not self._path.is_file():
            raise ClientError(
                f"{self._path} is gone, which has the model as it was received; put it back, and "
                "go on with --resume"
            )
        file = BodyFile(str(self._path), open_to_write(self._path, keep=True))
        try:
            for name in part.layout.by_name:
                file.write_tensor(name, part)
        finally:
            file.close()

    def source(self) -> FileSource:
        """Open the model."""
        return FileSource(self._path)
