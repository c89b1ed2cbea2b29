"""The effects that a run can go on after, going by what is left of its models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest
from flstream.runs.history import History
from flstream.runs.model_files import bodies_beside, body_file
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import EffectDone, ModelRecord

# More damaged models than this are only counted.
_MOST_NAMED = 3


class SoundEffects(NamedTuple):
    """The effects that a run can go on after, going by the files of its models.

    Attributes:
        records: Those up to the last whose newest model is sound.
        has_model: Whether there is a sound model: the newest of theirs, or the initial one.
        flaws: What is wrong with later models, a clause each, from the newest on.
    """

    records: Sequence[EffectDone]
    has_model: bool
    flaws: Sequence[str]

    @property
    def listed(self) -> str:
        """The first flaws, and how many more there are."""
        more = len(self.flaws) - _MOST_NAMED
        first = "; ".join(self.flaws[:_MOST_NAMED])
        return f"{first}; and {more} more" if more > 0 else first


def sound_effects(
    effects: Sequence[EffectDone], models: Sequence[ModelRecord], run: RunDirectory
) -> SoundEffects:
    """Find the newest model that is sound, and the effects that count with it.

    The models are read from the newest on until one is sound, with the bodies beside it, such as
    the server optimizer's state: the next fold would take them as they are, and come to other bits.

    Args:
        effects: The effects that are final, in the order in which they were written.
        models: The models of the run, the initial one first; none if that was not built yet.
        run: The run directory.
    """
    flaws: list[str] = []
    end = len(effects)
    for place in reversed(range(end)):
        model = effects[place].model
        if model is None:
            continue
        path = run.model_file(model)
        flaw = _flaw(path, model.digest)
        for body, digest in bodies_beside(model).items():
            flaw = flaw or _flaw(body_file(path, body), digest)
        if flaw is None:
            return SoundEffects(effects[:end], True, flaws)
        flaws.append(flaw)
        end = place
    if not models:
        return SoundEffects([], False, flaws)
    flaw = _flaw(run.checkpoint(0), models[0].digest)
    if flaw is None:
        return SoundEffects(effects[:end], True, flaws)
    return SoundEffects([], False, [*flaws, flaw])


def has_its_models(history: History, run: RunDirectory) -> bool:
    """Whether a finished run has the models that it names, as they were when it made them."""
    digests = {model.digest for model in history.models}
    named = [run.final_model]
    try:
        # As a rule both are names of one file, which is read once.
        if history.best is not None and not run.best_model.samefile(run.final_model):
            named.append(run.best_model)
        return all(body_digest(FileSource(path)) in digests for path in named)
    except (CheckpointError, OSError):
        return False


def _flaw(path: Path, digest: str) -> str | None:
    """Describe the defect of a model's file; None if its tensors have this digest."""
    try:
        present = body_digest(FileSource(path))
    except CheckpointError as error:
        return str(error)
    if present != digest:
        return f"{path} has the digest {present}, and had {digest} when it was written"
    return None
