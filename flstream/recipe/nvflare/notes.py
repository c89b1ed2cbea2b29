"""Notes on what became of each setting of a job folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from flstream.text import printable

Kind = Literal["becomes", "not needed", "comes later", "no counterpart"]

_MOST_PRINTED, _MOST_KEPT = 60, 2000


@dataclass(frozen=True)
class Note:
    """What became of one setting, or of one component with its settings."""

    file: str
    """Path of the file, relative to the job folder."""
    path: str
    """Place in the file, such as `workflows[0].args.num_rounds`; empty for all of the file."""
    kind: Kind
    """Whether it was converted, needs no counterpart, has none yet, or has none."""
    word: str
    """Keys of the job file that it became, or why it has none."""
    named: str = ""
    """Class of a component, by its path or name."""
    value: str = ""
    """Value as HOCON text, where it is not in the job file."""

    @property
    def is_lost(self) -> bool:
        """Whether the setting has no effect in the converted job."""
        return self.kind in ("comes later", "no counterpart")

    @property
    def text(self) -> str:
        """The note as one line, without the file, and with the beginning of the value."""
        if self.kind == "becomes":
            verdict = f"becomes {self.word}"
        else:
            verdict = f"{self.kind}: {self.word}" if self.word else self.kind
        return self._line(_MOST_PRINTED, verdict)

    @property
    def comment(self) -> str:
        """The note as one line below the words "without a counterpart", with the value."""
        return self._line(_MOST_KEPT, self.word)

    def _line(self, most: int, verdict: str) -> str:
        place = " ".join(part for part in (self.path, self.named) if part)
        if self.value:
            place += f" = {self.value if len(self.value) <= most else f'{self.value[:most]}...'}"
        return printable(": ".join(part for part in (place, verdict) if part))


def by_file(notes: Iterable[Note]) -> Iterator[tuple[str, list[Note]]]:
    """Yield each file with its notes; the notes come file by file."""
    for file, group in groupby(notes, key=lambda note: note.file):
        yield printable(file), list(group)


def as_comments(notes: Iterable[Note]) -> Iterator[str]:
    """Yield the lines of a comment that lists notes with their values, file by file."""
    for file, group in by_file(notes):
        yield f"#   {file}"
        yield from (f"#     {note.comment}" for note in group)
