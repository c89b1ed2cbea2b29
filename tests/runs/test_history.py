"""A run whose workflow's effects are recorded: what counts of it, wherever it is cut off."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import evaluated, results, round_finished, run_started

from flstream.runs.history import History
from flstream.runs.journal import read_history, read_journal
from flstream.runs.summary import summarize
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    ModelReady,
    ModelRecord,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunResumed,
    SiteFailed,
    SitePhaseChanged,
    Transfer,
    Warned,
    encode_lines,
)

SITES = ["site-1", "site-2"]


def started(rounds: int = 3, **facts: str) -> list[AnyEvent]:
    return [
        run_started(job="relay", seed=7, rounds=rounds, **facts),
        ModelReady(bytes=160, tensors=2, digest="initial"),
    ]


def effect(number: int, round_number: int, model: ModelRecord | None = None) -> EffectDone:
    return EffectDone(
        effect=number, name="fold" if model else "train", round=round_number, request="",
        arguments="", model=model, result=msgspec.Raw(b'{"sites":2}'),
    )  # fmt: skip


def finished(number: int, digest: str) -> RoundFinished:
    weights, metrics = {"site-1": 1.0, "site-2": number}, {"loss": 1 / number}
    return round_finished(number, digest=digest, weights=weights, metrics=metrics)


def a_round(number: int) -> list[AnyEvent]:
    """A round that makes two models, each of one site, and evaluates both of them."""
    events: list[AnyEvent] = []
    for step, site in enumerate(SITES):
        made = 2 * (number - 1) + step
        model = ModelRecord(number, made + 1, step, f"model-{number}-{step}", f"state-{made}")
        begin = 100.0 * number + 10 * step
        events += [
            RoundStarted(round=number, sites=[site], time=begin),
            *(
                SitePhaseChanged(round=number, site=site, state=state, time=begin + after)
                for state, after in (("downloading", 0), ("training", 1), ("ready", 1 + number))
            ),
            effect(3 * made + 1, number),
            effect(3 * made + 2, number, model),
            evaluated(number, (number * 5 + step) % 7),
            effect(3 * made + 3, number),
        ]
    if number == 2:
        events.insert(3, SiteFailed(round=2, site="site-1", reason="it was slow", time=203.0))
        events.insert(3, Warned(message="round 2 was odd"))
    return [*events, finished(number, f"model-{number}-1")]


def a_run(rounds: int = 3) -> list[AnyEvent]:
    trained = [event for number in range(1, rounds + 1) for event in a_round(number)]
    return [*started(rounds), *trained, RunFinished(status="finished")]


def folded(events: Iterable[AnyEvent]) -> History:
    history = History()
    for event in events:
        history.apply(event)
    return history


def place_of(events: list[AnyEvent], number: int) -> int:
    """The place after the record of an effect, or after the initial model."""
    for place, event in enumerate(events):
        is_model = number == 0 and isinstance(event, ModelReady)
        if is_model or (isinstance(event, EffectDone) and event.effect == number):
            return place + 1
    raise AssertionError(number)


def test_a_round_may_make_several_models_and_evaluate_each():
    history = folded(a_run())
    assert [each.digest for each in history.models[:3]] == ["initial", "model-1-0", "model-1-1"]
    assert [each.version for each in history.models] == list(range(7))
    assert [each.number for each in history.rounds] == [1, 2, 3]
    first = history.rounds[0]
    assert (first.seconds, first.evaluation) == (10.5, 0.5)
    assert (first.down, first.up) == (Transfer(24, 3, 3), Transfer(20, 1, 1))
    assert [(failure.round, failure.site) for failure in history.failures] == [(2, "site-1")]
    assert history.scores == {n: {"accuracy": (5 * n + 1) % 7} for n in (1, 2, 3)}
    # Round 3 scored 1 and then 2; round 1 scored 5 and then 6.
    assert history.best == (1, 6.0)
    summary = summarize(history)
    assert summary.metrics[0] == {"accuracy": 6.0, "round": 1, "train": {"loss": 1.0}}
    assert (summary.rounds[0].evaluate, summary.transfer.down.bytes) == (0.5, 3 * 24)
    assert (summary.model.digest, summary.rounds_completed) == ("model-3-1", 3)
    # Site-1 failed at its training of round 2, so that this took no time at all.
    one, two = history.sites["site-1"], history.sites["site-2"]
    assert (one.downloads, one.trains, one.slowest, one.failures) == (3, 4, 3, 1)
    assert (two.downloads, two.trains, two.slowest) == (3, 6, 3)
    assert (two.updates, two.weight) == (3, 6)


def test_a_round_that_was_evaluated_again_is_best_by_its_last_evaluation_only():
    low = folded([*started(), evaluated(1, 0.9), evaluated(1, 0.1), finished(1, "a")])
    assert low.best == (1, 0.1)
    low.apply(evaluated(2, 0.2))
    assert low.best == (2, 0.2)
    low.apply(evaluated(2, 0.05))
    assert low.best == (1, 0.1)


@given(
    cuts=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 3)), max_size=5),
    is_cut_in_a_line=st.booleans(),
)
def test_a_run_cut_off_anywhere_goes_on_after_any_effect_and_adds_up_alike(
    cuts, is_cut_in_a_line, tmp_path_factory
):
    """Each sitting goes on after the last final effect, or an earlier one, as after damage."""
    path: Path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    events = a_run()
    for count, back in [*cuts, (1000, 0)]:
        history, effects, ends, resumes = read_journal(path)
        sitting, end = events, None
        if not history.is_empty:
            counting = [0, *(record.effect for record in effects)]
            last = counting[max(len(counting) - 1 - back, 0)]
            number = history.models[-1].round if history.models else None
            resumed = RunResumed(round=number, effect=last, warnings=["it went on"])
            again = events[place_of(events, last) :] if history.models else events[1:]
            end = ends.get(last, 0)
            earlier = [event for place, event in resumes if place > end]
            sitting = [*earlier, resumed, events[0], *again]
            count = max(count, len(earlier) + 1)  # which are written at once
        with EventLog(path, end=end) as log:
            for event in sitting[:count]:
                log.write(event)
        if is_cut_in_a_line and count < len(sitting):
            with path.open("ab") as file:
                file.write(encode_lines([sitting[count]])[:20])
    found, whole = read_history(path), folded(events)
    summaries = [results(summarize(each)) for each in (found, whole)]
    warnings = [set(each.pop("warnings")) for each in summaries]
    assert summaries[0] == summaries[1]
    assert warnings[0] - {"it went on"} == warnings[1] == {"round 2 was odd"}
    for name in ("models", "rounds", "sites"):
        assert getattr(found, name) == getattr(whole, name), name
    effects = [event for event in events if isinstance(event, EffectDone)]
    assert read_journal(path).effects == effects


@pytest.fixture
def journal(tmp_path) -> EventLog:
    with EventLog(tmp_path / "events.jsonl") as log:
        yield log


def test_a_cut_journal_goes_on_from_the_initial_model_or_from_nothing(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write(*started(), *a_round(1))
    with EventLog(path, end=read_journal(path).ends[0]) as log:
        log.write(RunResumed(round=0, effect=0, warnings=["again"]))
    history, effects, *_ = read_journal(path)
    assert (history.last_round, effects) == (0, [])
    assert summarize(history).warnings == ["again"]
    assert summarize(history).model.digest == "initial"
    with EventLog(path, end=0) as log:
        log.write(RunResumed(round=None, effect=0))
    history = read_history(path)
    assert (history.last_round, list(history.models), history.sites) == (None, [], {})


def test_a_run_cut_off_in_mid_round_has_the_model_that_it_made_last(tmp_path, journal):
    journal.write(*started(), *a_round(1), *a_round(2)[:8])
    history = read_history(tmp_path / "events.jsonl")
    assert (history.round_under_way, history.last_round) == (2, 1)
    summary = summarize(history)
    assert (summary.rounds_completed, summary.model.digest) == (1, "model-2-0")
    assert [each.round for each in summary.rounds] == [1]


def test_the_best_round_is_by_the_metric_that_the_run_began_with():
    assert folded(a_run()).best == (1, 6.0)
    lowest = folded([*started(key_metric="accuracy", key_metric_mode="min"), *a_run()[2:]])
    assert lowest.best == (3, 2.0)
    assert folded([*started(key_metric="loss"), *a_run()[2:]]).best is None
