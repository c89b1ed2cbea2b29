"""Writing of a converted job: job.conf, the code beside it, and what has no counterpart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flstream.errors import UsageError
from flstream.job import JobError, Problem, load_job, render_values
from flstream.job.keys import WORKFLOW
from flstream.recipe.job_folder import JOB_FILE
from flstream.recipe.nvflare.draft import Conversion
from flstream.recipe.nvflare.notes import as_comments
from flstream.text import printable

if TYPE_CHECKING:
    import numpy as np


def check_free(folder: Path) -> None:
    """Check that a new folder can be made here, or that there is an empty one.

    Raises:
        UsageError: There is something else.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; name a new folder")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error


def write_job(conversion: Conversion, folder: Path) -> list[str]:
    """Write a converted job into a new or empty folder.

    Args:
        conversion: The job.
        folder: The folder.

    Returns:
        The paths of the files in the folder, sorted.

    Raises:
        UsageError: The folder is not empty, or cannot be written; nothing is left in it then.
    """
    check_free(folder)
    made = _Made()
    try:
        made.folder(folder)
        for target, source in conversion.files.items():
            shutil.copyfile(source, made.file(folder / target))
        for target, arrays in conversion.arrays.items():
            _write_arrays(made.file(folder / target), arrays)
        text = job_file_text(conversion)
        made.file(folder / JOB_FILE).write_text(text, encoding="utf-8")
    except BaseException as error:
        made.undo()
        if isinstance(error, OSError):
            place = error.filename or folder
            raise UsageError(f"{place} cannot be written or read: {error.strerror}") from error
        raise
    return sorted(path.relative_to(folder).as_posix() for path in made.files)


def open_problems(folder: Path) -> tuple[Problem, ...]:
    """Return what is missing in a written job before it can run; its code is not imported."""
    try:
        load_job(folder / JOB_FILE)
    except JobError as error:
        return error.problems
    return ()


def job_file_text(conversion: Conversion) -> str:
    """Return the text of the job file: what has no counterpart as a comment, and the values."""
    lines = [f"# From the NVFlare job folder {printable(conversion.source)}."]
    lost = [note for note in conversion.notes if note.is_lost]
    if lost:
        lines += ["#", "# Without a counterpart here:", *as_comments(lost)]
    values = dict(conversion.values)
    several = values.pop(WORKFLOW) if isinstance(values.get(WORKFLOW), list) else []
    lines.append(render_values(values))
    return "\n".join([*lines, *(["", *workflow_lines(several), ""] if several else [])])


def workflow_lines(sections: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of one workflow section, or of a list of them."""
    if len(sections) == 1:
        yield from render_values({WORKFLOW: sections[0]}).strip().splitlines()
        return
    yield f"{WORKFLOW} = ["
    for section in sections:
        lines = render_values({WORKFLOW: section}).strip().splitlines()
        yield from ("  {", *(f"  {line}" for line in lines[1:-1]), "  }")
    yield "]"


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    import numpy as np

    with path.open("wb") as file:
        np.savez(file, **cast("dict[str, Any]", arrays))


class _Made:
    """Files and folders that were made, and can be removed again."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self._folders: list[Path] = []

    def folder(self, path: Path) -> None:
        """Make a folder, and those above it, unless it is there."""
        missing = [each for each in (path, *path.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir()
            self._folders.append(each)

    def file(self, path: Path) -> Path:
        """Make a file without content; return its path."""
        self.folder(path.parent)
        path.open("xb").close()
        self.files.append(path)
        return path

    def undo(self) -> None:
        """Remove everything."""
        for path in self.files:
            path.unlink(missing_ok=True)
        for path in reversed(self._folders):
            with suppress(OSError):  # someone has put something else into it
                path.rmdir()
