"""Recognition of scripts that are written for NVFlare."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path

from flstream.job.imports import all_imports


def imports_nvflare(path: Path) -> bool:
    """Return whether a Python file imports NVFlare anywhere; one that does not parse does not."""
    # What does not parse is refused with the job, by its key.
    with suppress(OSError, SyntaxError, ValueError):
        tree = ast.parse(path.read_bytes())
        return any(each.module.partition(".")[0] == "nvflare" for each in all_imports(tree))
    return False
