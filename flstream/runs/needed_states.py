"""The versions of the sites' states that a run needs which resumes after some effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flstream.client.state import StateVersion
from flstream.telemetry.events import EffectDone
from flstream.telemetry.exact import decode_exact

_States = dict[str, StateVersion]


def needed_states(records: Sequence[EffectDone]) -> list[tuple[str, StateVersion]]:
    """Return the sites and versions of their states that a run needs after some effects.

    They are those that the sites have now, and those before their last trainings whose updates are
    yet to be folded: if one turns out to be of no use, the site goes back to that. Sites that begin
    with an empty state are left out.

    Args:
        records: The effects, in order.
    """
    newest: _States = {}
    # By site, its last training; by training, what its sites had before it.
    last: dict[str, int] = {}
    bases: dict[int, Mapping[str, StateVersion | None]] = {}
    folded: set[int] = set()
    for record in records:
        result: Any = decode_exact(record.result)
        trained = result if record.name == "train" else (result or {}).get("train")
        if trained is not None:
            bases[record.effect] = {site: newest.get(site) for site in trained["sites"]}
            last.update(dict.fromkeys(trained["sites"], record.effect))
            for site, (effect, digest) in trained["states"].items():
                newest[site] = StateVersion(effect, digest)
        if record.model is not None:
            for number, sites in result["updates"]:
                folded.add(number)
                for site in set(sites) & result["refused"].keys():
                    _go_back(newest, site, bases[number].get(site))
    before = (
        (site, base)
        for site, number in last.items()
        if number not in folded and (base := bases[number].get(site)) is not None
    )
    return [*newest.items(), *before]


def _go_back(states: _States, site: str, base: StateVersion | None) -> None:
    """Take one site back to what it was, since its update turned out to be of no use."""
    if base is None:
        states.pop(site, None)
    else:
        states[site] = base
