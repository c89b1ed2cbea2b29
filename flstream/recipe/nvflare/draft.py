"""The job that a job folder becomes, while it is put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flstream.job import job_keys, parse_value
from flstream.job.problems import RefusedValueError
from flstream.job.values import render_value
from flstream.recipe.nvflare.folders import AppFolder
from flstream.recipe.nvflare.notes import Kind, Note

if TYPE_CHECKING:
    import numpy as np

# What these name lies in the new folder, which is written last, or has to be installed.
_CHECKED_WITH_THE_JOB = ("model.factory", "model.initial", "train.script", "tracking.type")


@dataclass(frozen=True)
class Conversion:
    """What a job folder becomes."""

    name: str
    """Name of the job."""
    source: str
    """Name of the job folder."""
    values: dict[str, Any]
    """Values of the job file by key; sections are dicts."""
    files: Mapping[str, Path]
    """Files to copy, by their path in the new folder."""
    arrays: Mapping[str, Mapping[str, np.ndarray]]
    """Files of arrays to write (.npz), by their path in the new folder: arrays by name."""
    notes: tuple[Note, ...]
    """What became of each setting, file by file."""


class Place(NamedTuple):
    """A place in a configuration."""

    file: str
    path: str

    def note(self, kind: Kind, word: str = "", named: str = "", value: Any = None) -> Note:
        """Return a note on what is at this place."""
        shown = "" if value is None else render_value(value)
        return Note(self.file, self.path, kind, word, named, shown)

    def inner(self, key: str) -> Place:
        """Return the place of a key in the section at this place."""
        return Place(self.file, f"{self.path}.{key}" if self.path else key)


@dataclass(frozen=True)
class ConfiguredClass:
    """An object that a configuration has NVFlare make: a component, controller or executor."""

    app: AppFolder
    place: Place
    named: str
    """Its class by path, such as `net.Net`, or by name alone."""
    id: str
    args: Mapping[str, Any]

    @property
    def short_name(self) -> str | None:
        """Name of one of NVFlare's classes; None for a class of others."""
        is_theirs = self.named.startswith("nvflare.") or "." not in self.named
        return self.named.rpartition(".")[2] if is_theirs else None


@dataclass(frozen=True)
class Argument:
    """A setting, with what it is an argument of."""

    owner: ConfiguredClass | None
    """The object that it is for; None for a key at the top of a file."""
    place: Place
    name: str
    value: Any

    def becomes(self, *keys: str) -> Note:
        """Return the note on a setting that was converted."""
        return self.place.note("becomes", ", ".join(keys), value=self._shown())

    def becomes_unless(self, refused: str | None, *keys: str) -> Note:
        """Return the note on a setting that was converted, unless it was refused with a reason."""
        return self.becomes(*keys) if refused is None else self.lost(refused)

    def not_needed(self, why: str) -> Note:
        """Return the note on a setting that has nothing to do here."""
        return self.place.note("not needed", why, value=self._shown())

    def lost(self, why: str = "") -> Note:
        """Return the note on a setting without a counterpart."""
        return self.place.note("no counterpart", why, value=self.value)

    def _shown(self) -> Any:
        return None if isinstance(self.value, dict | list) and self.value else self.value


class SiteScript(NamedTuple):
    """The training script of some sites."""

    argument: Argument
    sites: tuple[str, ...] | None
    """Names of the sites; None for all of them."""
    path: str
    """Path of the script in the new folder."""
    source: Path | None
    """Path of the script in the job folder; None if it is not there."""
    args: str
    """Arguments, as on a shell."""
    command: str
    """Command that starts it; empty where it only starts Python."""


@dataclass
class StageDraft:
    """A workflow of the job."""

    type: str
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def section(self) -> dict[str, Any]:
        """Values of the workflow's section."""
        return {"type": self.type, **({"args": self.args} if self.args else {})}


class KeyMetric(NamedTuple):
    """The metric that decides which round is the best."""

    name: str
    negated: bool


class JobDraft:
    """Keys of the job as they are found, in any order.

    Args:
        count: Number of sites; None where no file says it.
        site_names: Names of the sites by those that they have in NVFlare; None where it names none.

    Attributes:
        values: Values of the job file, by dotted key.
        stages: Workflows, in order.
        scripts: Training scripts, in the order in which they are found.
        metric: The key metric of a model selector.
        sampled: Number of sites that a round of the first workflow samples.
        models: Ids of components that are models.
        files: Files to copy, by their path in the new folder.
        arrays: Files of arrays to write, by their path in the new folder.
        components: Components of the configuration that is being converted.
    """

    def __init__(self, count: int | None, site_names: Mapping[str, str] | None) -> None:
        self.count, self.site_names = count, site_names
        self.values: dict[str, Any] = {}
        self.stages: list[StageDraft] = []
        self.scripts: list[SiteScript] = []
        self.metric: KeyMetric | None = None
        self.sampled: int | None = None
        self.models: set[str] = set()
        self.files: dict[str, Path] = {}
        self.arrays: dict[str, Mapping[str, np.ndarray]] = {}
        self.components: list[ConfiguredClass] = []
        # Filters of each direction and side, by the file that lists them.
        self._filters: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}

    def put(self, key: str, value: Any) -> str | None:
        """Give a key a value.

        Args:
            key: Dotted name of the key.
            value: Value as a job file has it.

        Returns:
            Why the key cannot have it; None if it has it now.
        """
        if key in self.values:
            if self.values[key] == value:
                return None
            return f"{key} is {render_value(self.values[key])} already"
        if key in job_keys() and key not in _CHECKED_WITH_THE_JOB:
            try:
                parse_value(key, value, Path.cwd())
            except RefusedValueError as error:
                return _reason(key, error)
        self.values[key] = value
        return None

    def site(self, name: str) -> str:
        """Return the name of a site, by that which it has in NVFlare."""
        return (self.site_names or {}).get(name, name)

    def add_filter(
        self, direction: str, side: str, file: str, section: Mapping[str, Any]
    ) -> str | None:
        """Add a filter to ``filters.up`` or ``filters.down``; see :meth:`put`.

        Args:
            direction: Which of the two.
            side: Whether the server or a client has it in NVFlare.
            file: File that lists it. The apps of several sites may list the same filters.
            section: The filter's section in a job file.
        """
        by_file = self._filters.setdefault((direction, side), {})
        own = by_file.setdefault(file, [])
        own.append(dict(section))
        first = next(iter(by_file.values()))
        if first is not own:
            is_there = first[: len(own)] == own
            return None if is_there else "all sites have the same filters here"
        key = f"filters.{direction}"
        before = self.values.pop(key, [])
        refused = self.put(key, [*before, dict(section)])
        if refused is not None:
            own.pop()
            if before:
                self.values[key] = before
        return refused

    def add_patterns(self, key: str, patterns: Iterable[str]) -> str | None:
        """Add regular expressions to a key that lists some; see :meth:`put`."""
        before = self.values.pop(key, [])
        refused = self.put(key, list(dict.fromkeys([*before, *patterns])))
        if refused is not None and before:
            self.values[key] = before
        return refused


def _reason(key: str, error: RefusedValueError) -> str:
    problem = error.problems[0]
    parts = [f"{key} must be {problem.allowed}" if problem.allowed else "", problem.hint]
    return "; ".join(part for part in parts if part) or problem.given
