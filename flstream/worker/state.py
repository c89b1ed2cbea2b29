"""A site's own files, whole after any crash, from training to training.

A training works on a copy of the version that the journal names, and leaves a version of its own:
see :mod:`flstream.runs.site_states` for what lies where.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from flstream.errors import ClientError
from flstream.model.descriptors import sync_directory
from flstream.model.folder_content import folder_digest, remove_folder, sync_folder
from flstream.runs.results import StateVersion
from flstream.runs.site_states import StateFolder, is_folder
from flstream.text import error_text, printable_path


class SiteState:
    """The state of one site during one task.

    Nothing is copied, and no folder made, unless the training code asks for it. The task begins
    with the exact version ``base``, None for an empty folder. Where ``is_kept`` is false, as in an
    evaluation, the task's changes are lost. ``oldest`` is the number of the earliest effect that
    the run may go back to.
    """

    def __init__(
        self,
        site_folder: str,
        effect: int,
        base: StateVersion | None,
        *,
        is_kept: bool,
        oldest: int = 0,
    ) -> None:
        self._site = printable_path(os.path.basename(site_folder))
        self._versions = StateFolder(site_folder)
        self._effect = effect
        self._base = base
        self._is_kept = is_kept
        self._oldest = oldest
        self._working: str | None = None
        self._failure = ""
        self._is_open = True
        if is_kept:
            self._versions.remove_unfinished("effect")

    @property
    def path(self) -> Path:
        """The folder to work in, a copy of the base."""
        if not self._is_open:
            raise ClientError(
                f"{self._site} has answered its task of effect {self._effect}, and its state is "
                "kept as it was; change the files in state_dir before you answer"
            )
        self._check()
        if self._working is None:
            self._working = self._make()
        return Path(self._working)

    def keep(self) -> StateVersion | None:
        """Keep the files that the task left, under the name of its effect.

        The version is durable when this returns. Earlier ones stay beside it as long as the run may
        go back to them. Returns None after an evaluation, and if nobody asked for the state, which
        then stays that of the base.
        """
        self._check()
        if self._working is None or not self._is_kept:
            self.discard()
            return None
        try:
            version = StateVersion(self._effect, folder_digest(self._working, writeback=True))
            sync_folder(self._working)
            self._publish(self._working, version)
            self._versions.remove(
                lambda other: other.effect == version.effect and other.digest != version.digest
            )
        except OSError as error:
            raise ClientError(
                f"the state of {self._site} after effect {self._effect} cannot be kept: "
                f"{error_text(error)}; put that right before it trains again"
            ) from error
        return version

    def discard(self) -> None:
        """Remove the files that a task without effect left."""
        self._is_open = False
        if self._working is not None:
            remove_folder(self._working)
            self._working = None

    def _check(self) -> None:
        # Training code that catches the error and goes on would come to other bits.
        if self._failure:
            raise ClientError(self._failure)

    def _make(self) -> str:
        purpose = "effect" if self._is_kept else "evaluate"
        working = f"{self._versions.path}/{purpose}-{self._effect:04d}.tmp"
        try:
            self._lay_out(working)
        except ClientError as error:
            self._failure = str(error)
            with suppress(OSError):  # what cannot be removed now is removed before the next task
                if is_folder(working):
                    remove_folder(working)
            raise
        return working

    def _lay_out(self, working: str) -> None:
        base, flaw = self._base, None
        try:
            self._versions.make()
            if self._is_kept:
                self._versions.remove_superseded(base, self._effect, self._oldest)
            else:
                self._versions.remove_unfinished("evaluate")
            if base is None:
                os.mkdir(working)
            else:
                flaw = self._versions.flaw(base, copy_to=working)
        except OSError as error:
            raise ClientError(
                f"the state of {self._site} cannot be laid out for effect {self._effect}: "
                f"{error_text(error)}; put that right, and go on with --resume"
            ) from error
        if base is not None and flaw is not None:
            raise ClientError(
                f"the state that {self._site} had after effect {base.effect} cannot be used: "
                f"{flaw}; put it back from a copy and go on with --resume, or leave out --resume "
                "to start a new run"
            )

    def _publish(self, working: str, version: StateVersion) -> None:
        """Give the working copy its name, in one step."""
        path = self._versions.path_of(version)
        if not os.path.lexists(path):
            os.rename(working, path)
        elif self._versions.flaw(version) is None:
            # An earlier attempt at this task came to the same, and may count.
            remove_folder(working)
        else:
            what = "it is in the way, and its content is not what its name says"
            raise OSError(errno.EEXIST, what, path)
        sync_directory(Path(self._versions.path))
        self._is_open, self._working = False, None
