"""The small files of JSON in a run directory: what a run ran on, how its data is split, and scores.

A file that is not there, or is not what is written there, counts as empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from flstream.client.site_folder import SPLIT
from flstream.text import natural_key

Matrix = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Metrics by the site that scored and the model's owner."""

_MOST_MATRIX_BYTES = 64 << 20
_MOST_SPLIT_BYTES = 1 << 20


def read_versions(path: Path) -> Mapping[str, str]:
    """Read what a run ran on, by name.

    Args:
        path: ``versions.json``, which is written when a run begins or goes on.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, ValueError, RecursionError):
        return {}


def read_cross_site(path: Path) -> Matrix:
    """Read what each site has found of each model.

    Args:
        path: File that a cross-site evaluation has written.
    """
    try:
        with path.open("rb") as file:
            kind = dict[str, dict[str, dict[str, float | None]]]
            return msgspec.json.decode(file.read(_MOST_MATRIX_BYTES), type=kind)
    except (OSError, ValueError):
        return {}


def read_split(sites: Path) -> Mapping[str, Mapping[str, int]]:
    """Read the number of each site's examples by label, as far as sites have recorded it.

    Args:
        sites: Folder of the sites' folders, with files of
            :func:`flstream.client.partition.record`.

    Returns:
        The counts by site, in the order of the sites' names.
    """
    found = {}
    for path in sites.glob(f"*/{SPLIT}"):
        with suppress(OSError, ValueError), path.open("rb") as file:
            counts = msgspec.json.decode(file.read(_MOST_SPLIT_BYTES), type=dict[str, int])
            if all(count >= 0 for count in counts.values()):
                found[path.parent.name] = counts
    return dict(sorted(found.items(), key=lambda item: natural_key(item[0])))
