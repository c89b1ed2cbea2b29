"""The sites' own states in a run directory, which the sites keep themselves.

In a site's folder::

    state/effect-0003.<digest>      what the site had after effect 3, in which it trained
    state/effect-0007.<digest>      and after effect 7
    state/effect-0009.tmp           what it works on in effect 9, a copy of one of them
    state/evaluate-0010.tmp         the same in an evaluation, of which nothing is kept
    state/effect-0001.<digest>.tmp  a version that is being removed

The digest in a name is that of the folder's content. Whatever has another name, or is no folder, or
has other content than its name says, was not made here, and is left as it is.

A run only has to see that the states it goes on from are there, and to take back the state of a
site whose update turned out to be of no use. Those of effects that are void stay until the effects
are done again: they come to the same, or go then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from flstream.errors import ResumeRefusedError, SimulationError
from flstream.model.descriptors import sync_directory
from flstream.model.folder_content import copy_folder, folder_bytes, folder_digest, remove_folder
from flstream.runs.results import StateVersion
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import unused_name
from flstream.text import error_text, printable_path

_VERSION = re.compile(r"effect-([0-9]{4,18})\.([0-9a-f]{32})")
_UNFINISHED = re.compile(r"(effect|evaluate)-[0-9]{4,18}(?:\.[0-9a-f]{32})?\.tmp")
# More states than this that cannot be used are only counted.
_MOST_NAMED = 3


class StateFolder:
    """Folder with the versions of one site's state; it need not exist.

    What its methods cannot do is an OSError with the path.

    Args:
        site_folder: Path of the site's folder in the run directory.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self, site_folder: str | Path) -> None:
        self.path = f"{site_folder}/state"

    def path_of(self, version: StateVersion) -> str:
        """Return the path of a version's folder, whether or not it exists."""
        return f"{self.path}/{version.folder_name}"

    def versions(self) -> list[StateVersion]:
        """Return the existing versions, by name, in the order of their effects."""
        matches = filter(None, map(_VERSION.fullmatch, self._folders()))
        versions = [(StateVersion(int(match[1]), match[2]), match[0]) for match in matches]
        # A name has no more zeros than there have to be.
        named = [version for version, name in versions if version.folder_name == name]
        return sorted(named, key=lambda version: (version.effect, version.digest))

    def flaw(self, version: StateVersion, copy_to: str | None = None) -> str | None:
        """Describe a version's defect in a clause with its path; None if it is sound.

        Args:
            version: The version, all of which is read.
            copy_to: Path of a copy that is made meanwhile, which must not exist, and is of use only
                if there is no flaw; None for none.
        """
        path = self.path_of(version)
        try:
            digest = folder_digest(path) if copy_to is None else copy_folder(path, copy_to)
        except OSError as error:
            if not str(error.filename).startswith(path):
                raise
            if isinstance(error, FileNotFoundError) and error.filename == path:
                return f"{printable_path(path)} is missing"
            return error_text(error)
        if digest != version.digest:
            where = printable_path(path)
            return f"{where} has the digest {digest}, and had {version.digest} when it was kept"
        return None

    def remove(self, going: Callable[[StateVersion], bool]) -> None:
        """Remove versions, except folders that are not as their names say."""
        for version in self.versions():
            if going(version) and self.flaw(version) is None:
                path = self.path_of(version)
                # Half of a version must never be taken for a whole one.
                removed = f"{path}.tmp"
                if is_folder(removed):
                    remove_folder(removed)
                os.rename(path, removed)
                remove_folder(removed)

    def remove_superseded(self, base: StateVersion | None, effect: int, oldest: int) -> None:
        """Remove versions older than the base needs, and those of void attempts.

        A task begins with the base, so the base counts; and so it is then, and not when a version
        is kept, that one more than those before it can go.

        Args:
            base: Version that the task begins with; None for an empty state.
            effect: Number of the task's effect.
            oldest: Number of the earliest effect that the run may go back to: what the site had
                then stays, and all since.
        """
        if base is None or not is_folder(self.path_of(base)):
            return
        # What lies between the base and this task is of attempts that never came to count. What is
        # of this task or a later one may count: a task is done again if its update was lost.
        before = [version for version in self.versions() if version.effect < effect]
        counted = [version for version in before if version.effect < base.effect or version == base]
        first = sum(version.effect <= oldest for version in counted)
        retained = counted[max(first - 1, 0) :]
        self.remove(lambda version: version in before and version not in retained)

    def remove_unfinished(self, purpose: Literal["effect", "evaluate"] | None = None) -> None:
        """Remove working copies of a purpose, or all, and half-removed versions."""
        for name in self._folders():
            match = _UNFINISHED.fullmatch(name)
            if match is not None and purpose in (None, match[1]):
                remove_folder(f"{self.path}/{name}")

    def make(self) -> None:
        """Make the folder, with a durable name, unless it is there."""
        if not os.path.isdir(self.path):
            os.makedirs(self.path)
            site_folder = Path(self.path).parent
            sync_directory(site_folder)
            sync_directory(site_folder.parent)

    def _folders(self) -> list[str]:
        """Return the names of the folders in it, without links."""
        try:
            with os.scandir(self.path) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []


def is_folder(path: str | Path) -> bool:
    """Return whether a name is of a folder, and not of a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def check_states(run: RunDirectory, needed: Iterable[tuple[str, StateVersion]]) -> None:
    """Check that states exist with the content that their sites kept.

    All of them are read, in pieces of 1 MiB.

    Args:
        run: The run directory.
        needed: Sites and versions of theirs. A site that begins with an empty state is not among
            them.

    Raises:
        ResumeRefusedError: One is missing, damaged, or cannot be read; the message names it.
    """
    flaws = []
    for site, version in needed:
        flaw = StateFolder(run.site(site)).flaw(version)
        if flaw is not None:
            flaws.append(f"that of {site} after effect {version.effect}: {flaw}")
    if not flaws:
        return
    listed = "; ".join(flaws[:_MOST_NAMED])
    if len(flaws) > _MOST_NAMED:
        listed += f"; and {len(flaws) - _MOST_NAMED} more"
    raise ResumeRefusedError(
        f"the run in {run.path} needs states of its sites that cannot be used ({listed}); put "
        "them back from a copy, or leave out --resume to start a new run"
    )


def discard_site_state_after(
    site_folder: Path, effect: int, keep: StateVersion | None = None
) -> None:
    """Take a site's state back to the one after an effect.

    Versions of later effects are removed, and whatever was left unfinished. It can be interrupted
    at any instant, and done again.

    Args:
        site_folder: The site's folder in the run directory.
        effect: Number of the last effect that counts; 0 keeps no state.
        keep: A version to keep all the same.

    Raises:
        SimulationError: Something cannot be removed.
    """
    states = StateFolder(site_folder)
    if not is_folder(site_folder) or not is_folder(states.path):
        return
    with _in_a_sentence(f"the state of {site_folder.name} cannot be taken back"):
        states.remove_unfinished()
        states.remove(lambda version: version.effect > effect and version != keep)


def set_aside_altered_states(run: RunDirectory, sites: Collection[str], effect: int) -> list[str]:
    """Rename void states that somebody has changed, and return a sentence for each.

    Sites leave states of these names again when they repeat their trainings.
    """
    warnings = []
    for site, states, versions in _present(run, sites):
        with _in_a_sentence(f"a state of {site} was changed, and cannot be renamed"):
            for version in versions:
                if version.effect > effect and states.flaw(version) is not None:
                    path = Path(states.path_of(version))
                    renamed = path.rename(unused_name(path))
                    warnings.append(f"{path} is not what {site} left; it is {renamed.name} now")
    return warnings


def state_bytes(run: RunDirectory, sites: Collection[str], count: int) -> int:
    """Return the bytes that sites' states may still take, by the newest of each.

    Of a site that has kept nothing yet, nothing is known.

    Args:
        run: The run directory.
        sites: Names of all sites.
        count: Number of versions that a site comes to.

    Raises:
        SimulationError: A state cannot be looked at.
    """
    more = 0
    for site, states, versions in _present(run, sites):
        if versions and (missing := count - len(versions)) > 0:
            with _in_a_sentence(f"the state of {site} cannot be looked at"):
                more += missing * folder_bytes(states.path_of(versions[-1]))
    return more


def present_state_bytes(run: RunDirectory, sites: Collection[str]) -> int:
    """Return the bytes of the two newest states of each site, which the next ones take.

    Args:
        run: The run directory.
        sites: Names of all sites.

    Raises:
        SimulationError: A state cannot be looked at.
    """
    present = 0
    for site, states, versions in _present(run, sites):
        with _in_a_sentence(f"the state of {site} cannot be looked at"):
            present += sum(folder_bytes(states.path_of(version)) for version in versions[-2:])
    return present


def _present(
    run: RunDirectory, sites: Collection[str]
) -> Iterator[tuple[str, StateFolder, list[StateVersion]]]:
    """Yield the sites with folders, in order, with their states.

    Files and links are somebody else's, and so is a folder of another name: it may be a copy.
    """
    with _in_a_sentence("the states of the sites cannot be looked at"):
        names = sorted(set(os.listdir(run.sites)).intersection(sites))
    for site in filter(lambda name: is_folder(run.site(name)), names):
        states = StateFolder(run.site(site))
        with _in_a_sentence(f"the state of {site} cannot be looked at"):
            versions = states.versions() if is_folder(states.path) else []
        yield site, states, versions


@contextmanager
def _in_a_sentence(what: str) -> Iterator[None]:
    """Raise a SimulationError for an OSError."""
    try:
        yield
    except OSError as error:
        raise SimulationError(
            f"{what}: {error_text(error)}; put that right, and go on with --resume"
        ) from error
