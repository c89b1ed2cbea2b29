"""What a run ran on: ``versions.json``, which is written when it begins or goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from flstream.runs.run_directory import RunDirectory


def read_versions(run: Path) -> Mapping[str, str]:
    """What a run ran on, by name; nothing where that was not kept.

    Raises:
        OSError: it cannot be read.
    """
    try:
        text = RunDirectory(run).versions.read_bytes()
        return msgspec.json.decode(text, type=dict[str, str])
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
