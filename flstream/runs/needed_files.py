"""The files beside its models that a run needs which resumes after some of its effects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from flstream.runs.state_versions import StateVersion
from flstream.telemetry.events import EffectDone
from flstream.telemetry.exact import decode_exact


class WaitingUpdate(NamedTuple):
    """An update in a file, which waits to be folded by a later effect.

    Attributes:
        training: Number of the effect that asked for it.
        site: Name of the site.
        digest: Digest of its body.
        is_certain: Whether it is needed. Otherwise the program may have dropped it, and its file is
            gone then.
        is_durable: Whether its file is whole wherever it is: that of an answer to a training that
            was started may have been folded before it was synced.
        base: Version of the model that it was trained from.
    """

    training: int
    site: str
    digest: str
    is_certain: bool
    is_durable: bool
    base: int


def needed_states(records: Sequence[EffectDone]) -> list[tuple[str, StateVersion]]:
    """Return the sites and versions of the states that they have after some effects.

    Sites whose state is empty are left out.

    Args:
        records: The effects, in order.
    """
    newest: dict[str, StateVersion] = {}
    for record in records:
        result: Any = decode_exact(record.result) if record.name != "start" else None
        trained = result if record.name == "train" else (result or {}).get("train")
        if trained is None:
            continue
        # Only what was trained in the fold itself goes back with an update that it refused.
        refused = result.get("refused", ())
        for site, (effect, digest) in trained["states"].items():
            if site not in refused:
                newest[site] = StateVersion(effect, digest)
    return list(newest.items())


def needed_updates(
    records: Sequence[EffectDone], all_records: Sequence[EffectDone]
) -> list[WaitingUpdate]:
    """Return the updates in files that wait to be folded after some effects.

    Args:
        records: The effects, in order.
        all_records: These, and those that came after them, which are to be done again.
    """
    waiting: dict[tuple[int, str], WaitingUpdate] = {}
    for record in records:
        if record.name in ("train", "next"):
            result: Any = decode_exact(record.result)
            number = result.get("start", record.effect)
            trained, is_durable = result.get("train", result), record.name == "train"
            for site, (digest, *_) in trained["files"].items():
                update = WaitingUpdate(number, site, digest, True, is_durable, trained["base"])
                waiting[number, site] = update
        elif record.model is not None:
            # Those that the program refers to no more are gone from here on.
            for key, update in waiting.items():
                waiting[key] = update._replace(is_certain=False)
    for record in islice(all_records, len(records), None):
        for key in _folded(record) & waiting.keys():
            waiting[key] = waiting[key]._replace(is_certain=True)
    return list(waiting.values())


def needed_bases(records: Sequence[EffectDone], waiting: Sequence[WaitingUpdate]) -> frozenset[int]:
    """Return the versions of the models that trainings in flight and waiting updates start from.

    Args:
        records: The effects of one workflow, in order.
        waiting: The updates that wait after them.
    """
    in_flight: dict[int, int] = {}
    for record in records:
        if record.name == "start":
            in_flight[record.effect] = decode_exact(record.result)
        elif record.name == "next":
            in_flight.pop(decode_exact(record.result)["start"], None)
    return frozenset(in_flight.values()) | {each.base for each in waiting if each.is_certain}


def _folded(record: EffectDone) -> set[tuple[int, str]]:
    """The numbers of trainings, and sites, whose updates an effect has folded."""
    if record.model is None:
        return set()
    used = decode_exact(record.result)["updates"]
    return {(number, site) for number, sites in used for site in sites}
