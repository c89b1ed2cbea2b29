"""What a run notes of its initial model for exports, beside the files that it keeps for them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flstream.errors import CheckpointError

_NAME = ".flstream.json"


class ExportRecord(msgspec.Struct, frozen=True):
    """What an export has to know of the model.

    Attributes:
        prefix: What the names of its tensors begin with and those of the pretrained model within do
            not; empty where they are the same.
    """

    prefix: str = ""

    def write(self, folder: Path) -> None:
        """Write the record into the folder of the files."""
        (folder / _NAME).write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, folder: Path) -> ExportRecord:
        """Read the record in a folder; an empty one where there is none.

        Raises:
            CheckpointError: It cannot be read.
        """
        try:
            return msgspec.json.decode((folder / _NAME).read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.DecodeError) as error:
            raise CheckpointError(
                f"{folder / _NAME} is damaged: {error}; remove it to export the names as they are"
            ) from error


def kept_files(folder: Path) -> list[Path]:
    """Return the files that a run has kept for exports, in the order of their names."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name != _NAME)
