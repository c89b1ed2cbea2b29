"""The versions of a site's state on disk: their names, which are there, and how they go.

In a site's folder::

    state/effect-0003.<digest>      what the site had after effect 3, in which it trained
    state/effect-0007.<digest>      and after effect 7
    state/effect-0009.tmp           what it works on in effect 9, a copy of one of them
    state/evaluate-0010.tmp         the same in an evaluation, of which nothing is kept
    state/effect-0001.<digest>.tmp  a version that is being removed

The digest in a name is that of the folder's content. Whatever has another name, or is no folder, or
has other content than its name says, was not made here, and is left as it is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from flstream.model.descriptors import sync_directory
from flstream.model.folder_content import copy_folder, folder_digest, remove_folder
from flstream.text import error_text, printable_path

STATE_FOLDER = "state"
"""Name of the folder of a site's states, in the site's own."""

TaskState = Literal["effect", "evaluate"]
"""What a working copy is for: a training, whose effect it is named by, or an evaluation."""

_VERSION = re.compile(r"effect-([0-9]{4,18})\.([0-9a-f]{32})")
_UNFINISHED = re.compile(r"(effect|evaluate)-[0-9]{4,18}(?:\.[0-9a-f]{32})?\.tmp")
_SUFFIX = ".tmp"


class StateVersion(msgspec.Struct, frozen=True, array_like=True):
    """What a site's state was after one of its trainings.

    Attributes:
        effect: Number of the train effect that left it.
        digest: Digest of the folder's content, 32 hexadecimal digits.
    """

    effect: int
    digest: str

    @property
    def folder_name(self) -> str:
        """Name of its folder among the versions of the site."""
        return f"effect-{self.effect:04d}.{self.digest}"


class StateFolder:
    """The folder with the versions of one site's state. It need not exist.

    Args:
        site_folder: Path of the site's folder in the run directory.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self, site_folder: str) -> None:
        self.path = f"{site_folder}/{STATE_FOLDER}"

    def path_of(self, version: StateVersion) -> str:
        """Path of a version's folder, whether or not it is there."""
        return f"{self.path}/{version.folder_name}"

    def working_path(self, purpose: TaskState, effect: int) -> str:
        """Path of the working copy of a task."""
        return f"{self.path}/{purpose}-{effect:04d}{_SUFFIX}"

    def versions(self) -> list[StateVersion]:
        """The versions that are there by name, in the order of their effects.

        Raises:
            OSError: The folder cannot be listed.
        """
        found = []
        for name in self._folders():
            match = _VERSION.fullmatch(name)
            if match is not None:
                version = StateVersion(int(match[1]), match[2])
                if version.folder_name == name:  # and not with more zeros than there have to be
                    found.append(version)
        return sorted(found, key=lambda version: (version.effect, version.digest))

    def flaw(self, version: StateVersion) -> str | None:
        """What is wrong with a version, as a clause with its path; None if it is sound.

        All of it is read.
        """
        return self._flaw(version, folder_digest)

    def copy(self, version: StateVersion, target: str) -> str | None:
        """Copy a version, and say what is wrong with it, as :meth:`flaw` does.

        Args:
            version: The version, of which nothing is taken for granted.
            target: Path of the copy, which must not exist. It is of use only if there is no flaw.

        Raises:
            OSError: The copy cannot be written; the error has the path.
        """
        return self._flaw(version, lambda path: copy_folder(path, target))

    def _flaw(self, version: StateVersion, digest_of: Callable[[str], str]) -> str | None:
        path = self.path_of(version)
        try:
            found = digest_of(path)
        except OSError as error:
            if not str(error.filename).startswith(path):
                raise
            if isinstance(error, FileNotFoundError) and error.filename == path:
                return f"{printable_path(path)} is missing"
            return error_text(error)
        if found != version.digest:
            where = printable_path(path)
            return f"{where} has the digest {found}, and had {version.digest} when it was kept"
        return None

    def remove(self, going: Callable[[StateVersion], bool]) -> None:
        """Remove versions, but for those that are not what their name says.

        Args:
            going: Whether a version is to be removed.

        Raises:
            OSError: One cannot be removed; the error has the path.
        """
        for version in self.versions():
            if going(version) and self.flaw(version) is None:
                path = self.path_of(version)
                # Half of a version must never be taken for a whole one.
                removed = path + _SUFFIX
                if is_folder(removed):
                    remove_folder(removed)
                os.rename(path, removed)
                remove_folder(removed)

    def remove_superseded(self, base: StateVersion | None, effect: int, oldest: int) -> None:
        """Remove what the base's predecessors have superseded, and what came to nothing.

        A task begins with the base, so the base counts; and so it is then, and not when a version
        is kept, that one more than those before it can go.

        Args:
            base: What the task begins with; None for an empty state.
            effect: Number of the task's effect.
            oldest: Number of the earliest effect that the run may go back to: what the site had
                then stays, and all since.

        Raises:
            OSError: One cannot be removed; the error has the path.
        """
        if base is None or not is_folder(self.path_of(base)):
            return
        # What lies between the base and this task is of attempts that never came to count. What is
        # of this task or a later one may count: a task is done again if its update was lost.
        before = [each for each in self.versions() if each.effect < effect]
        counted = [each for each in before if each.effect < base.effect or each == base]
        first = sum(each.effect <= oldest for each in counted)
        kept = counted[max(first - 1, 0) :]
        self.remove(lambda each: each in before and each not in kept)

    def remove_unfinished(self, purpose: TaskState | None = None) -> None:
        """Remove working copies and what is left of versions that were being removed.

        Args:
            purpose: What those were for that are removed; None for all.

        Raises:
            OSError: The folder cannot be listed, or one cannot be removed; the error has the path.
        """
        for name in self._folders():
            match = _UNFINISHED.fullmatch(name)
            if match is not None and purpose in (None, match[1]):
                remove_folder(f"{self.path}/{name}")

    def make(self) -> None:
        """Make the folder, with a durable name, unless it is there.

        Raises:
            OSError: It cannot be made; the error has the path.
        """
        if not os.path.isdir(self.path):
            os.makedirs(self.path)
            site_folder = Path(self.path).parent
            sync_directory(site_folder)
            sync_directory(site_folder.parent)

    def _folders(self) -> list[str]:
        """Names of the folders in it, without links to some."""
        try:
            with os.scandir(self.path) as found:
                return [each.name for each in found if each.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder of this name, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
