"""Simulated times of trainings: what became of each, and how much of many is kept."""

from collections.abc import Mapping

import pytest
from journal_support import record, run_started

from flstream.runs.history import History
from flstream.runs.results import FoldResult, NextResult, TaskCost, TrainResult
from flstream.runs.simulated_times import OUTCOMES, SimulatedTimes, absence
from flstream.telemetry.events import EffectDone, ModelRecord, Transfer

SECOND = 1_000_000_000
STRAGGLED = "the round went on without it (stragglers.policy = percentage)"


def train(
    began: float, times: Mapping[str, float], ended: float | None = None, base: int = 0, **failed
) -> TrainResult:
    """The result of a training; a site that has failed has a reason, and perhaps was late."""
    reasons = {site.replace("_", "-"): reason for site, reason in failed.items()}
    sites = [site for site in times if site not in reasons]
    count = len(sites)
    late = [site for site, reason in reasons.items() if not reason.startswith("it failed")]
    return TrainResult(
        sites, [1.0] * count, [{}] * count, [b""] * bool(count), [0] * count,
        TaskCost(), {}, reasons, late, base=base, began=int(began * SECOND),
        ended=int((began + max(times.values()) if ended is None else ended) * SECOND),
        times={site: int(time * SECOND) for site, time in times.items()},
    )  # fmt: skip


def fold(effect, version, updates, refused=None, trained=None, name="fold") -> EffectDone:
    result = FoldResult({}, {}, refused or {}, 0.0, 0.0, Transfer(), updates, train=trained)
    return record(effect, name, 1, result, model=ModelRecord(1, version, 0, "digest"))


def added_up(*effects: EffectDone) -> SimulatedTimes:
    history = History(keeps_times=True)
    for event in (run_started(clock="virtual"), *effects):
        history.apply(event)
    assert history.times is not None
    return history.times


def bars(times: SimulatedTimes, site: str) -> list[tuple[float, float, str]]:
    """A site's bars: when each begins, how long it is, and what became of it."""
    own = times.sites[site].bars
    assert own is not None
    columns = zip(own.begins, own.lengths, own.outcomes, strict=True)
    return [(begin / SECOND, length / SECOND, OUTCOMES[at]) for begin, length, at in columns]


def test_a_training_is_folded_late_away_or_failed_and_ends_with_its_round():
    out = "it dropped out (devices.phone.dropout)"
    gone = "it went away (devices.phone.available)"
    times = added_up(
        record(1, "train", 1, train(
            0, {"site-1": 2, "site-2": 9, "site-3": 0.5, "site-4": 1, "site-5": 3}, ended=3,
            site_2=STRAGGLED, site_3=out, site_4=gone, site_5="it failed: no data",
        )),
        fold(2, 1, [(1, ["site-1"])]),
        record(3, "train", 2, train(3, {"site-1": 1, "site-2": 1}, base=1)),
    )  # fmt: skip
    assert bars(times, "site-1") == [(0, 2, "folded"), (3, 1, "not folded")]
    assert bars(times, "site-2") == [(0, 3, "late"), (3, 1, "not folded")]
    assert [bars(times, f"site-{n}")[0][2] for n in (3, 4, 5)] == ["away", "away", "failed"]
    assert dict(zip(OUTCOMES, times.counts, strict=True)) == {
        "folded": 1, "stale": 0, "not folded": 2, "late": 1, "away": 2, "failed": 1,
    }  # fmt: skip
    assert (times.now, list(times.folds)) == (4 * SECOND, [3 * SECOND])
    site = times.sites["site-2"]
    assert (site.trainings, site.busy, site.absences) == (2, 4 * SECOND, 1)


def test_an_update_that_is_folded_twice_counts_once_with_what_became_of_it_first():
    times = added_up(
        record(1, "train", 1, train(0, {"site-1": 2, "site-2": 3})),
        fold(2, 1, [(1, ["site-1"])]),
        fold(3, 2, [(1, ["site-1", "site-2"])]),
    )
    assert times.counts[:3] == [1, 1, 0]
    assert (bars(times, "site-1")[0][2], bars(times, "site-2")[0][2]) == ("folded", "stale")
    assert (times.sites["site-1"].stale, times.sites["site-2"].stale) == (0, 1)


def test_an_update_is_stale_that_is_folded_into_a_later_model_than_the_next():
    def answer(number, start, site, began, time, base):
        return record(
            number, "next", 1, NextResult(start, site, train(began, {site: time}, None, base))
        )

    times = added_up(
        answer(4, 1, "site-1", 0, 1, base=0),
        fold(5, 1, [(1, ["site-1"])]),
        answer(6, 2, "site-2", 0, 3, base=0),
        answer(7, 3, "site-1", 1, 3, base=1),
        record(8, "next", 1, NextResult(until=5 * SECOND)),
        fold(9, 2, [(2, ["site-2"]), (3, ["site-1"])]),
    )  # fmt: skip
    assert bars(times, "site-1") == [(0, 1, "folded"), (1, 3, "folded")]
    assert bars(times, "site-2") == [(0, 3, "stale")]
    assert times.sites["site-2"].stale == 1
    assert list(times.folds) == [SECOND, 5 * SECOND]  # the last one after a wait


@pytest.mark.parametrize("name", ["fold", "adopt"])
def test_a_fold_that_trains_itself_and_refuses_an_update_counts_both(name):
    trained = train(1, {"site-1": 2, "site-2": 1}, base=4)
    refused = {"site-2": "its update has NaN"}
    times = added_up(fold(9, 5, [(9, ["site-1", "site-2"])], refused, trained, name))
    assert bars(times, "site-1") == [(1, 2, "folded")]
    assert bars(times, "site-2") == [(1, 1, "failed")]


def test_of_many_trainings_a_bar_stands_for_several_and_keeps_their_time():
    done = ((n, NextResult(n, "site-1", train(10 * n, {"site-1": 1}))) for n in range(1, 1302))
    effects = [record(n, "next", 1, result) for n, result in done]
    times = added_up(*effects, *(fold(2000 + n, 1, []) for n in range(1100)))
    own = bars(times, "site-1")
    assert times.sites["site-1"].bars.trainings == 4
    assert len(own) == 326
    assert own[1] == (50, 4, "not folded")
    assert own[-1] == (13010, 1, "not folded")
    assert sum(length for _, length, _ in own) == 1301
    assert (len(times.folds), times.folds_apart) == (550, 2)


def test_of_many_sites_the_first_have_bars_and_all_their_sums():
    sites = {f"site-{n}": 1.0 for n in range(1, 5001)}
    times = added_up(
        record(1, "train", 1, train(0, sites, site_5000=STRAGGLED)),
        fold(2, 3, [(1, list(sites)[:-1])]),
    )
    assert len(times.sites) == 5000
    assert sum(site.bars is not None for site in times.sites.values()) == 4096
    last = times.sites["site-5000"]
    assert (last.trainings, last.absences, last.bars) == (1, 1, None)
    assert times.counts[OUTCOMES.index("stale")] == 4999


def test_times_are_kept_of_a_virtual_clock_alone_and_where_they_are_wanted():
    for keeps, clock in ((True, "wall"), (False, "virtual")):
        history = History(keeps_times=keeps)
        history.apply(run_started(clock=clock))
        history.apply(record(1, "train", 1, train(0, {"site-1": 1})))
        assert history.times is None


def test_an_absence_is_away_where_the_device_left_and_late_where_nobody_waited():
    assert absence("it dropped out (devices.a.dropout)", is_late=True) == "away"
    assert absence("it went away (devices.a.available)", is_late=True) == "away"
    assert absence(STRAGGLED, is_late=True) == "late"
    assert absence("it went away for good, said its code", is_late=False) == "failed"
