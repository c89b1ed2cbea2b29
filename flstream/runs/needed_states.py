"""The versions of the sites' states that a run needs which goes on after some effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flstream.client.state import StateVersion
from flstream.errors import ResumeRefusedError
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_states import check_states
from flstream.telemetry.events import EffectDone
from flstream.telemetry.exact import decode_exact


class NeededStates(NamedTuple):
    """Versions of the sites' states, by site. Those that begin with an empty state are left out.

    Attributes:
        newest: What the sites have now, and begin their next tasks with.
        before: What they had before their last training, of those whose updates may be lost: none
            of that training is in a model yet, so it may have to be repeated.
    """

    newest: Mapping[str, StateVersion]
    before: Mapping[str, StateVersion]


def needed_states(records: Sequence[EffectDone]) -> NeededStates:
    """Find out which versions a run needs that goes on after some effects.

    It is what :class:`flstream.server.federation_state.FederationState` comes to by replaying them.

    Args:
        records: The effects that count, in the order in which they were written.
    """
    newest: dict[str, StateVersion] = {}
    # By site, its last training and what it had before it; by training, what all of its had.
    last: dict[str, int] = {}
    bases: dict[int, Mapping[str, StateVersion | None]] = {}
    for record in records:
        result: Any = decode_exact(record.result)
        if record.name == "train":
            sites = result["sites"]
            bases[record.effect] = {site: newest.get(site) for site in sites}
            last.update(dict.fromkeys(sites, record.effect))
            for site, (effect, digest) in result["states"].items():
                newest[site] = StateVersion(effect, digest)
        elif record.model is not None:
            for number, sites in result["updates"]:
                # Where a program has left updates out, it had them before it and did not want them.
                base_of = bases.pop(number, {})
                for site in set(sites) & result["refused"].keys():
                    _go_back(newest, site, base_of.get(site))
    before = {
        site: base
        for site, number in last.items()
        if (base := bases.get(number, {}).get(site)) is not None
    }
    return NeededStates(newest, before)


def with_sound_states(run: RunDirectory, records: Sequence[EffectDone]) -> Sequence[EffectDone]:
    """The effects after which a run can go on, going by what is left of the sites' states.

    Where those are damaged that the last trainings have left, and none of these is in a model yet,
    they are done again: all it takes then is what the sites had before.

    Args:
        run: The run directory.
        records: The effects that count, with models that are sound.

    Raises:
        ResumeRefusedError: A state is missing, damaged, or cannot be read; the message names it.
    """
    try:
        _check(run, records)
    except ResumeRefusedError:
        models = [place for place, record in enumerate(records) if record.model is not None]
        rest = range(models[-1] + 1 if models else 0, len(records))
        trained = [place for place in rest if records[place].name == "train"]
        if not trained:
            raise
        records = records[: trained[0]]
        _check(run, records)
    return records


def _check(run: RunDirectory, records: Sequence[EffectDone]) -> None:
    needed = needed_states(records)
    check_states(run, [*needed.newest.items(), *needed.before.items()])


def _go_back(states: dict[str, StateVersion], site: str, base: StateVersion | None) -> None:
    """Take one site back to what it was, since its update turned out to be of no use."""
    if base is None:
        states.pop(site, None)
    else:
        states[site] = base
