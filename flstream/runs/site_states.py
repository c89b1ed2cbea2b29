"""The sites' own states in a run directory, which the sites keep by themselves.

See :mod:`flstream.runs.state_versions`. A run only has to see that those it goes on from are there,
and to take back the state of a site whose update turned out to be of no use. Those of effects that
are void stay until the effects are done again: they come to the same, or go then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from flstream.errors import ResumeRefusedError, SimulationError
from flstream.model.folder_content import folder_bytes
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import unused_name
from flstream.runs.state_versions import (
    StateFolder,
    StateVersion,
    is_folder,
)
from flstream.text import error_text

# More states than this that cannot be used are only counted.
_MOST_NAMED = 3


def check_states(run: RunDirectory, needed: Iterable[tuple[str, StateVersion]]) -> None:
    """Check that states are there, and have the content that they had when they were kept.

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
        flaw = StateFolder(str(run.site(site))).flaw(version)
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
    """Take a site's state back to what it was after an effect.

    Versions of later effects are removed, and whatever was left unfinished. What no site has made
    is left as it is: files and links, folders of other names, and versions whose content is not
    what their name says. It can be interrupted at any instant, and done again.

    Args:
        site_folder: The site's folder in the run directory.
        effect: Number of the last effect that counts; 0 keeps no state.
        keep: A version to keep all the same.

    Raises:
        SimulationError: Something cannot be removed.
    """
    states = StateFolder(str(site_folder))
    if not is_folder(site_folder) or not is_folder(states.path):
        return
    try:
        states.remove_unfinished()
        states.remove(lambda version: version.effect > effect and version != keep)
    except OSError as error:
        raise SimulationError(
            f"the state of {site_folder.name} cannot be taken back: {error_text(error)}; put that "
            "right, and go on with --resume"
        ) from error


def set_aside_altered_states(run: RunDirectory, sites: Collection[str], effect: int) -> list[str]:
    """Give other names to void states that somebody has changed, and so has made their own.

    Sites leave states of these names again when they repeat their trainings.

    Args:
        run: The run directory.
        sites: Names of all sites.
        effect: Number of the last effect that counts. States of later ones are read.

    Returns:
        A sentence for each.

    Raises:
        SimulationError: One cannot be read or renamed.
    """
    warnings = []
    for folder in _site_folders(run, sites):
        states = StateFolder(str(folder))
        try:
            versions = states.versions() if is_folder(states.path) else []
            for version in versions:
                if version.effect > effect and states.flaw(version) is not None:
                    path = Path(states.path_of(version))
                    renamed = path.rename(unused_name(path))
                    warnings.append(
                        f"{path} is not what {folder.name} left; it is {renamed.name} now"
                    )
        except OSError as error:
            raise SimulationError(
                f"a state of {folder.name} was changed, and cannot be renamed: "
                f"{error_text(error)}; put that right, and go on with --resume"
            ) from error
    return warnings


def state_bytes(run: RunDirectory, sites: Collection[str], versions: int) -> int:
    """The disk that the sites' states may still take, going by the newest one of each.

    Of a site that has kept nothing yet, nothing is known.

    Args:
        run: The run directory.
        sites: Names of all sites.
        versions: Number of versions that a site comes to.

    Returns:
        Bytes beyond those that are there now.

    Raises:
        SimulationError: A state cannot be looked at.
    """
    more = 0
    for folder in _site_folders(run, sites):
        states = StateFolder(str(folder))
        try:
            present = states.versions() if is_folder(states.path) else []
            missing = versions - len(present)
            if present and missing > 0:
                more += missing * folder_bytes(states.path_of(present[-1]))
        except OSError as error:
            raise SimulationError(
                f"the state of {folder.name} cannot be looked at: {error_text(error)}; put that "
                "right, and go on with --resume"
            ) from error
    return more


def _site_folders(run: RunDirectory, sites: Collection[str]) -> Iterator[Path]:
    """The folders of sites that are there, in order.

    Files and links are somebody else's, and so is a folder of another name: it may be a copy.
    """
    names = set(sites)
    try:
        folders = sorted(path for path in run.sites.iterdir() if path.name in names)
    except OSError as error:
        raise SimulationError(
            f"{error_text(error)}; put that folder right, and go on with --resume"
        ) from error
    yield from (path for path in folders if is_folder(path))
