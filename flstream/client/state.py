"""A site's own files, kept from round to round such that no crash leaves them half written.

In the site's folder::

    state/0003        what the site had when it had trained in round 3
    state/0007        and in round 7: the newest; the one before it is kept for a resume
    state/0009.tmp    what it works on in round 9, a copy of the newest until it is renamed
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flstream.errors import ClientError

_VERSIONS = "state"
_UNFINISHED = ".tmp"


class SiteState:
    """The state of one site during one task.

    Nothing is copied, and no folder made, unless the training code asks for it.

    Args:
        site_folder: the site's folder in the run directory; it need not exist yet.
        round_number: round of the task.
        kept: whether what the task leaves is kept. An evaluation's is not.
    """

    def __init__(self, site_folder: str, round_number: int, *, kept: bool) -> None:
        self._versions = f"{site_folder}/{_VERSIONS}"
        self._round = round_number
        self._kept = kept
        self._made: str | None = None
        self._is_open = True
        if kept:
            # What an attempt at this round left that did not come to count: it must not be seen.
            _discard(self._versions, round_number - 1)

    @property
    def path(self) -> Path:
        """The folder to work in: what the last round kept, as a copy.

        Raises:
            ClientError: the task has been answered.
        """
        if not self._is_open:
            raise ClientError(
                f"the task of round {self._round} was answered, and its state is kept as it was; "
                "change the files in state_dir before you answer"
            )
        if self._made is None:
            self._made = self._make()
        return Path(self._made)

    def keep(self) -> None:
        """The site's work is done: what it left is what it will find next time.

        It is durable when this returns. Of older versions, the newest is kept, for a resume that
        has to do the round again. After an evaluation, nothing is kept.
        """
        if self._made is None or not self._kept:
            self.discard()
            return
        _sync(self._made)
        os.rename(self._made, f"{self._versions}/{self._round:04d}")
        _sync_one(self._versions)
        self._is_open, self._made = False, None
        before = [number for number in _numbers(self._versions) if number < self._round]
        for number in sorted(before)[:-1]:
            _remove(f"{self._versions}/{number:04d}")

    def discard(self) -> None:
        """The work came to nothing: what it left is removed."""
        self._is_open = False
        if self._made is not None:
            shutil.rmtree(self._made)
            self._made = None

    def _make(self) -> str:
        # An evaluation of round 3's model sees what training in round 3 left.
        last = self._round - 1 if self._kept else self._round
        newest = max((number for number in _numbers(self._versions) if number <= last), default=0)
        purpose = "" if self._kept else "evaluate-"
        made = f"{self._versions}/{purpose}{self._round:04d}{_UNFINISHED}"
        if os.path.exists(made):
            shutil.rmtree(made)
        if newest:
            shutil.copytree(f"{self._versions}/{newest:04d}", made, symlinks=True)
        else:
            os.makedirs(made)
        return made


def discard_after(site_folder: Path, round_number: int) -> None:
    """Take a site's state back to what it was after a round, for a run that goes on from there.

    Args:
        site_folder: the site's folder in the run directory.
        round_number: the last round whose state is kept; 0 keeps none.
    """
    _discard(f"{site_folder}/{_VERSIONS}", round_number)


def _discard(versions: str, round_number: int) -> None:
    """Remove versions newer than a round, and whatever was left unfinished."""
    try:
        names = os.listdir(versions)
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(_UNFINISHED):
            shutil.rmtree(f"{versions}/{name}")
        elif name.isdecimal() and int(name) > round_number:
            _remove(f"{versions}/{name}")


def _numbers(versions: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(versions) if name.isdecimal()]
    except FileNotFoundError:
        return []


def _remove(version: str) -> None:
    """Remove a version. Half of one must never be taken for a whole one."""
    doomed = f"{version}{_UNFINISHED}"
    if os.path.exists(doomed):
        shutil.rmtree(doomed)
    os.rename(version, doomed)
    shutil.rmtree(doomed)


def _sync(folder: str) -> None:
    for path, _, names in os.walk(folder):
        for name in names:
            if not os.path.islink(f"{path}/{name}"):
                _sync_one(f"{path}/{name}")
        _sync_one(path)


def _sync_one(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
