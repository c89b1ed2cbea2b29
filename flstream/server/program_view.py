"""Handles of models and updates for workflows, without their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from flstream.model.selection import Selection

if TYPE_CHECKING:
    from flstream.server.training import SiteTraining


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Model:
    """A model of the run: a file, never held in memory.

    As long as a workflow refers to it, its file stays, whatever ``checkpoints.keep`` says.

    Attributes:
        round: Round in which it was made; 0 is the initial model.
        version: How many models the run had made before it.
        digest: Digest of its body, 32 hexadecimal digits.
    """

    round: int
    version: int
    digest: str


@dataclass(frozen=True, eq=False)
class Update:
    """A site's answer to a training; its tensors lie where it was trained, or in a file.

    Attributes:
        site: Name of the site.
        weight: Weight that its site gave it: ``meta["num_examples"]``, else the number of steps
            (``meta["NUM_STEPS_CURRENT_ROUND"]``), else 1. A fold multiplies it by the site's factor
            in ``aggregation.weights``, if any.
        metrics: What the site reported with it, by name.
        base: The model that it was trained from.
        training: The task that it came of.
        failure: Why the site has no update; empty where it has one, as all of ``run.train`` do.
    """

    site: str
    weight: float
    metrics: Mapping[str, float]
    base: Model
    training: SiteTraining
    _message: bytes = b""
    failure: str = ""

    @property
    def ok(self) -> bool:
        """Whether the site answered without a failure."""
        return not self.failure

    @property
    def has_tensors(self) -> bool:
        """Whether it has tensors that can be folded: not every answer to ``run.ask`` has."""
        return self.ok and self.training.has_tensors(self.site)

    @cached_property
    def _values(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        from flstream.worker.meta import unpack_meta

        return unpack_meta(self._message)

    @property
    def meta(self) -> dict[str, Any]:
        """Plain values that the site sent beside its tensors, by name."""
        return self._values[0]

    @property
    def optimizer_params(self) -> dict[str, Any] | None:
        """State of the site's optimizer as plain values; None where it sent none."""
        return self._values[1]


class Updates(Sequence[Update]):
    """The updates of one ``run.train``, in the cohort's order.

    Sites train once something is read of it: its length, truth, sites, failures or updates. Passed
    unread to ``run.fold``, the updates are folded as they come.

    Attributes:
        training: The task that they come of.
        is_read: Whether something was read of it.
    """

    def __init__(self, training: SiteTraining) -> None:
        self.training = training
        self.is_read = False
        self._found: Sequence[Update] | None = None

    @property
    def sites(self) -> list[str]:
        """The sites that sent an update."""
        return [update.site for update in self._read()]

    @property
    def failures(self) -> Mapping[str, str]:
        """The sites that were asked and sent none, and why."""
        self._read()
        return self.training.failures()

    def _read(self) -> Sequence[Update]:
        self.is_read = True
        if self._found is None:
            self._found = self.training.updates()
        return self._found

    def __len__(self) -> int:
        return len(self._read())

    @overload
    def __getitem__(self, index: int) -> Update: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Update]: ...

    def __getitem__(self, index: int | slice) -> Update | Sequence[Update]:
        return self._read()[index]

    def __repr__(self) -> str:
        training = self.training
        if not training.is_done:
            return f"<updates of round {training.round}, not yet trained>"
        return f"<updates of effect {training.number}>"


_LONGEST_PATTERN = 8  # of effects that are told as one

ValueT = TypeVar("ValueT")

Failures = Mapping[str, str]
"""By site, the reason why it is left out."""

NO_FAILURES: Failures = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class SiteModel:
    """A model of one site: a file, never held in memory.

    Attributes:
        site: Name of the site.
        digest: Digest of its body, 32 hexadecimal digits.
        effect: Number of the effect that collected it.
    """

    site: str
    digest: str
    effect: int


class _BySite(dict[str, ValueT]):
    """Values by site, in the order in which the sites were given.

    Attributes:
        failures: By site, the reason why it has none.
    """

    def __init__(self, values: Mapping[str, ValueT], failures: Failures = NO_FAILURES) -> None:
        super().__init__(values)
        self.failures = dict(failures)


class SiteModels(_BySite[SiteModel]):
    """The models that were collected, by site, in the order in which the sites were given."""

    def __repr__(self) -> str:
        return f"<models of {', '.join(self) or 'no site'}>"


class SiteScores(_BySite[dict[str, float]]):
    """Metrics of one model by site, in the order of the call."""

    def __repr__(self) -> str:
        return f"<scores of {', '.join(self) or 'no site'}>"


class ProgramOutline(msgspec.Struct):
    """Effects of a workflow in its first round, and after its rounds.

    Attributes:
        name: Name of the workflow.
        effects: The effects in words, such as ``train 4 sites``.
        trained: How many sites train.
        scored: How many sites score a model of ``run.score``.
        collected: How many sites send a model of their own.
        samples: Whether it draws sites by the job's sampler.
        reads: Whether it reads updates before they are folded, which then wait in files.
        bodies: Names of the bodies that it begins with beside its model.
        combines: Whether its folds combine groups of whole tensors.
        merges: Whether it adds residuals to the base, of which each model then has its own.
        in_flight: Most trainings that are in flight at a time.
        waiting: Most trainings whose updates may wait at a time, those in flight too.
        own: Functions of the shapes of those that are the server's own, by name; of a user's own
            workflow they are not known.
        moments: Names of the values that its own step of the server keeps for each number.
        has_replicas: Whether sites train on with a model and an optimizer of their own.
        parts: For each training of parts of a model: how many sites train, and the tensors that
            they receive, send and are sent late.
        misfit: Sentence on a key of the job that rules out what it does; empty for none.
        flaw: Why the program could not be run to its end without doing anything; empty if it was.
    """

    name: str
    effects: list[str] = []
    trained: int = 0
    scored: int = 0
    collected: int = 0
    samples: bool = False
    reads: bool = False
    bodies: list[str] = []
    own: dict[str, Any] = {}
    moments: list[str] = []
    has_replicas: bool = False
    parts: list[tuple[int, dict[str, Selection]]] = []
    combines: bool = False
    merges: bool = False
    in_flight: int = 0
    waiting: int = 0
    misfit: str = ""
    flaw: str = ""

    def __str__(self) -> str:
        if self.flaw:
            taken = "taken for one that trains, folds and evaluates"
            return f"{self.name}, {taken}: a dry run has no answers to go by ({self.flaw})"
        return f"{self.name}: {', '.join(_repeated(self.effects)) or 'nothing'}"


def _repeated(effects: Sequence[str]) -> Iterator[str]:
    """Effects in words, those that are repeated in brackets with how often."""
    place = 0
    while place < len(effects):
        length, times = 1, 1
        for size in range(1, _LONGEST_PATTERN + 1):
            pattern, repeats = effects[place : place + size], 1
            while effects[place + repeats * size : place + (repeats + 1) * size] == pattern:
                repeats += 1
            if repeats > 1 and repeats * size > length * times:
                length, times = size, repeats
        pattern = effects[place : place + length]
        text = ", ".join(pattern)
        if times > 1:
            text = f"{times} x ({text})" if length > 1 else f"{times} x {text}"
        yield text
        place += length * times
