"""Code of a job folder's apps: the files that are copied beside the job file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from filecmp import cmp
from pathlib import Path

from flstream.recipe.nvflare.draft import JobDraft, Place
from flstream.recipe.nvflare.folders import JobFolder
from flstream.recipe.nvflare.notes import Note

JOB_FILE = "job.conf"


def list_code(draft: JobDraft, folder: JobFolder) -> Iterator[Note]:
    """Enter the files of all apps' code; yield notes on those that are not copied.

    Files keep their places below the folder `custom`, so that packages stay packages.
    """
    for app in folder.apps:
        for path in _files(app.custom) if app.custom is not None else ():
            target = path.relative_to(app.custom or path).as_posix()
            place = Place(path.relative_to(folder.root).as_posix(), "")
            if not path.is_file() or not path.resolve().is_relative_to(folder.root):
                yield place.note("no counterpart", "it is no file of this folder; not copied")
            elif target == JOB_FILE or target in draft.arrays:
                yield place.note("no counterpart", f"not copied: {target} is the job's own")
            elif target in draft.files and not cmp(draft.files[target], path, shallow=False):
                first = draft.files[target].relative_to(folder.root).as_posix()
                yield place.note("no counterpart", f"not copied: {first} differs, and is")
            else:
                draft.files[target] = path


def _files(custom: Path) -> Iterator[Path]:
    """Yield the paths of files, and of links to folders, in order."""
    for where, folders, names in os.walk(custom):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        links = [name for name in folders if Path(where, name).is_symlink()]
        yield from (Path(where, name) for name in sorted([*names, *links]))
