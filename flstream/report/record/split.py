"""How the data of a run is split over its sites, as far as these have recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from flstream.client.site_folder import SPLIT
from flstream.text import natural_key

_MOST_BYTES = 1 << 20


def read_split(sites: Path) -> Mapping[str, Mapping[str, int]]:
    """Read the number of each site's examples by label.

    A file that is not what :func:`flstream.client.partition.record` writes is passed over.

    Args:
        sites: Folder of the sites' folders.

    Returns:
        The counts by site, in the order of the sites' names.
    """
    found = {}
    for path in sites.glob(f"*/{SPLIT}"):
        with suppress(OSError, ValueError), path.open("rb") as file:
            counts = msgspec.json.decode(file.read(_MOST_BYTES), type=dict[str, int])
            if all(count >= 0 for count in counts.values()):
                found[path.parent.name] = counts
    return dict(sorted(found.items(), key=lambda item: natural_key(item[0])))
