"""Results of effects, as the journal has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from flstream.telemetry.events import EffectDone, PrivacySpent, Transfer
from flstream.telemetry.exact import decode_record


class StateVersion(msgspec.Struct, frozen=True, array_like=True):
    """State of a site after one of its trainings.

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


class TaskCost(NamedTuple):
    """Cost of a task.

    Where workers do several sites, seconds are what a worker has spent on average.

    Attributes:
        download: Seconds until the last site had the model.
        work: Seconds from then until the last answer.
        fetch: Seconds of fetching updates, where they are fetched at once.
        down: Transfers of the model to the sites.
    """

    download: float = 0.0
    work: float = 0.0
    fetch: float = 0.0
    down: Transfer = Transfer()


class UpdateRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record in the journal of an update that waits to be folded.

    Attributes:
        digest: Digest of the body in its file, as it was sent; empty where the record has the body.
        body: Bytes of a small update, in the form in which they travelled.
        header: The safetensors header of these, without the length; empty for that of the model.
        params_type: Whether it has the weights or their difference from the model.
        partial: Whether it may lack tensors of the model.
        cost: Cost of fetching it into its file.
    """

    digest: str = ""
    body: bytes = b""
    header: bytes = b""
    params_type: Literal["FULL", "DIFF"] = "FULL"
    partial: bool = False
    cost: Transfer = Transfer()


class TrainResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a training in the journal.

    Attributes:
        sites: The sites with an update, in the cohort's order.
        weights: Its weight, for each of them.
        metrics: What each reported with it.
        metas: The payload messages of ``meta``, each once: they are mostly the same from all sites.
        meta_places: For each site, the place of its own among these.
        states: By site, the version of the state that it has left, where it has left any.
        failures: By site, the reason why it has no update.
        late: Those of them that were merely not waited for.
        cost: What it cost.
        bases: By site, the version of the state that it began with, where it had any.
        asks: Kinds of task that their code asked about, of sites that answered for the first time.
        updates: By site, its update, of those that wait to be folded by a later effect.
        base: Version of the model that they were trained from.
        began: When it began by the virtual clock, in nanoseconds; 0 on the wall clock.
        ended: When it ended, likewise.
        times: By site, nanoseconds from its beginning until it has answered or failed.
    """

    sites: list[str]
    weights: list[float]
    metrics: list[dict[str, float]]
    metas: list[bytes]
    meta_places: list[int]
    cost: TaskCost
    states: dict[str, StateVersion] = {}
    failures: dict[str, str] = {}
    late: list[str] = []
    bases: dict[str, StateVersion] = {}
    asks: dict[str, list[str]] = {}
    updates: dict[str, UpdateRecord] = {}
    base: int = 0
    began: int = 0
    ended: int = 0
    times: dict[str, int] = {}

    def answers(self) -> Iterator[tuple[str, float, Mapping[str, float], bytes]]:
        """Yield each site with its weight, metrics and payload message of meta."""
        columns = zip(self.sites, self.weights, self.metrics, self.meta_places, strict=True)
        for site, weight, metrics, place in columns:
            yield site, weight, metrics, self.metas[place]


class NextResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a training in flight in the journal, or of a wait in which none has answered.

    Attributes:
        start: Number of the effect that started it.
        site: Its site.
        train: What came of it; None where none has answered.
        until: When such a wait ended by the virtual clock, in nanoseconds; 0 on the wall clock.
    """

    start: int = 0
    site: str = ""
    train: TrainResult | None = None
    until: int = 0


class FoldPrivacy(msgspec.Struct, frozen=True):
    """Privacy of a fold in the journal: epsilon spent, and the next clipping norm.

    Attributes:
        clip_norm: Clipping norm of the fold.
        clipped: Fraction of its updates that were scaled down.
        drawn_from: Number of sites that its cohort was drawn from; 0 if it was not drawn.
        folds: Number of all folds so far by the number of sites that their cohorts were drawn from.
        epsilon: What all folds so far have spent.
        next_clip_norm: Clipping norm of the next fold.
        next_epsilon: What they will have spent after another one.
    """

    clip_norm: float
    clipped: float
    drawn_from: int
    folds: dict[int, int]
    epsilon: float
    next_clip_norm: float
    next_epsilon: float

    @property
    def spent(self) -> PrivacySpent:
        """Epsilon, clipping norm and clipped fraction for the event of its round."""
        return PrivacySpent(self.epsilon, self.clip_norm, self.clipped)


class FoldResult(msgspec.Struct, frozen=True):
    """Result of a fold or an adoption in the journal, beside its model.

    Attributes:
        weights: By site, the weight of its update.
        metrics: What the sites reported with their updates, weighted alike.
        refused: By site, the reason why its update turned out to be of no use.
        fold: Seconds of fetching and folding.
        checkpoint: Seconds until the model was durable.
        up: Transfers of the updates.
        updates: The updates that were used: pairs of a training's number and its sites.
        kept: By site, the digest of its last model, where that is kept.
        at: Site in whose process they were folded; empty for the server's.
        privacy: What it has spent; None where the job is not private.
        train: What came of the training whose updates were folded as they came; None where they had
            been read before.
    """

    weights: dict[str, float]
    metrics: dict[str, float]
    refused: dict[str, str]
    fold: float
    checkpoint: float
    up: Transfer
    updates: list[tuple[int, list[str]]]
    kept: dict[str, str] = {}
    at: str = ""
    privacy: FoldPrivacy | None = None
    train: TrainResult | None = None


class ScoreResult(msgspec.Struct, frozen=True):
    """Scores of a model in the journal.

    Attributes:
        metrics: The evaluator's metrics; without one, the mean of each metric, weighted by the
            sites' own weights.
        failures: By site, the reason why it has found nothing.
        asks: What the code asks about, of sites that answer for the first time.
        sites: What each site has found, a column for each metric; empty for an evaluation.
    """

    metrics: dict[str, float]
    failures: dict[str, str]
    asks: dict[str, list[str]]
    sites: dict[str, list[float | None]] = {}


class CollectResult(msgspec.Struct, frozen=True):
    """Result of a collection in the journal.

    Attributes:
        models: By site, the digest of its model.
        failures: By site, the reason why there is none.
        failed: Those of them that failed in the task.
    """

    models: dict[str, str]
    failures: dict[str, str]
    failed: list[str]


_WITH_UPDATES: Mapping[str, type[TrainResult | NextResult | FoldResult]] = MappingProxyType(
    {"train": TrainResult, "next": NextResult, "fold": FoldResult, "adopt": FoldResult}
)


def result_of(effect: EffectDone) -> TrainResult | NextResult | FoldResult | None:
    """Return the result of an effect that sites' updates are part of; None for others."""
    kind = _WITH_UPDATES.get(effect.name)
    return None if kind is None else decode_record(effect.result, kind)
