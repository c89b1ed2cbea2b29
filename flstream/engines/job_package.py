"""The job's folder as Ray brings it to the nodes of a cluster, and what of it stays behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.text import error_text
from flstream.units import format_bytes

# Size of the largest file that goes along, and of all of them: Ray takes 512 MiB, and has them in
# the memory of its head.
_MOST_FILE_BYTES, _MOST_BYTES = 16 << 20, 500 << 20
# Folders of which any other folder has one of these files: a virtual environment, and a run.
_MARKS = ("pyvenv.cfg", "events.jsonl")
_SPECIAL = re.compile(r"([\\*?\[\]!# ])")


def runtime_env_of(
    folder: Path, run: Path, own: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the environment that Ray makes on each node for a job.

    Args:
        folder: Folder of the job.
        run: The run directory, which may be in it.
        own: The job's own ``engine.runtime_env``.

    Returns:
        The environment, as Ray takes it; and the files that stay behind since they are large.

    Raises:
        UsageError: The folder has too much, or cannot be read.
    """
    excludes, large, total = list[str](), list[str](), 0
    is_chosen = "excludes" in own or (folder / ".rayignore").is_file()
    try:
        for path, size in _entries(folder, folder, run):
            if size is None or size > _MOST_FILE_BYTES:
                name = str(path.relative_to(folder))
                excludes.append("/" + _SPECIAL.sub(r"\\\1", name))
                large += [] if size is None else [name]
                continue
            total += size
            if total > _MOST_BYTES and not is_chosen:
                raise UsageError(
                    f"the job's folder {folder} has more than {format_bytes(_MOST_BYTES)}, which "
                    "Ray does not take; put data where all nodes see it, or list in "
                    f"{folder}/.rayignore what is to stay behind"
                )
    except OSError as error:
        raise UsageError(
            f"the job's folder cannot be brought to the nodes: {error_text(error)}; make it "
            "readable, or move it out of the folder"
        ) from error
    excludes += own.get("excludes", [])
    return {"working_dir": str(folder), **own, "excludes": excludes}, large


def _entries(folder: Path, top: Path, run: Path) -> Iterator[tuple[Path, int | None]]:
    """Yield the content of a folder: the size of what goes along, and None with what does not."""
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            if entry.is_file():
                yield path, entry.stat().st_size
            elif _stays_behind(entry, path, top, run):
                yield path, None
            elif not entry.is_symlink():
                yield from _entries(path, top, run)


def _stays_behind(entry: os.DirEntry[str], path: Path, top: Path, run: Path) -> bool:
    if not entry.is_dir() or entry.name == "__pycache__" or entry.name.startswith("."):
        return True  # a pipe or a broken link, a cache, or hidden
    if path in (top / "runs", run) or any((path / mark).is_file() for mark in _MARKS):
        return True
    target = path.resolve()  # of a link, which may lead out of the folder, or in a circle
    is_odd = not target.is_relative_to(top.resolve()) or target in path.parents
    return entry.is_symlink() and is_odd
