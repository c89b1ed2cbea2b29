"""When a job ends early: it follows from the evaluations, and from nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.job import load_job
from flstream.runs.history import History
from flstream.runs.job_facts import JobFacts
from flstream.runs.stopping import EarlyStopping
from flstream.runs.summary import summarize
from flstream.telemetry.events import Evaluated, ModelReady, RoundFinished, Transfer

JOB = """
name = j, rounds = 50
clients { count = 2 }
model { factory = "model:build" }
train { script = client.py }
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "model.py").write_text("def build(): ...")
    (folder / "client.py").write_text("")
    (folder / "job.conf").write_text(JOB)
    return lambda *overrides: load_job(folder / "job.conf", overrides)


def fed(stopping, *values, metric="accuracy"):
    """Feed one value a round, from round 1 on; return what each evaluation said about stopping."""
    rounds = enumerate(values, start=1)
    return [stopping.evaluated(number, {metric: value}).stop for number, value in rounds]


def test_a_job_without_either_key_never_stops_and_never_warns(job):
    stopping = EarlyStopping(job())
    assert fed(stopping, 0.5, 0.5, 1.0, 0.1, None) == [None] * 5
    assert stopping.evaluated(6, {}).warnings == ()
    assert stopping.best == (3, 1.0)


def test_it_stops_in_the_round_that_reaches_the_condition_and_says_so(job):
    stopping = EarlyStopping(job("stop_when=accuracy >= 0.97"))
    reason = "accuracy reached 0.971 >= 0.97 in round 3"
    assert fed(stopping, 0.5, 0.9699999, 0.971) == [None, None, reason]
    assert stopping.reason == reason


@pytest.mark.parametrize(
    ("condition", "values", "stops"),
    [
        ("accuracy >= 0.5", (0.4, 0.5), (False, True)),
        ("accuracy > 0.5", (0.5, 0.6), (False, True)),
        ("accuracy <= 0.5", (0.6, 0.5), (False, True)),
        ("accuracy < 0.5", (0.5, 0.4), (False, True)),
    ],
)
def test_each_operator_means_what_it_says(job, condition, values, stops):
    assert tuple(map(bool, fed(EarlyStopping(job(f"stop_when={condition}")), *values))) == stops


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("condition", ["accuracy >= 0.5", "accuracy < 0.5"])
def test_a_metric_that_is_not_finite_neither_stops_nor_improves(job, nothing, condition):
    stopping = EarlyStopping(job(f"stop_when={condition}", "patience=1"))
    assert fed(stopping, nothing, nothing, nothing) == [None] * 3
    assert stopping.best is None


def test_the_value_is_shown_with_as_many_digits_as_the_condition_needs(job):
    [reason] = fed(EarlyStopping(job("stop_when=accuracy > 0.97")), 0.9700000000012345)
    assert reason == "accuracy reached 0.970000000001 > 0.97 in round 1"
    [reason] = fed(EarlyStopping(job("stop_when=accuracy < 3")), math.nextafter(3, 0))
    assert reason == "accuracy reached 2.9999999999999996 < 3 in round 1"


def test_it_stops_after_so_many_evaluations_without_a_better_one(job):
    stopping = EarlyStopping(job("patience=3"))
    said = fed(stopping, 0.5, 0.7, 0.91, 0.91, 0.9, 0.2)
    assert said[:-1] == [None] * 5
    assert said[-1] == "accuracy has not improved on 0.91 of round 3 for 3 evaluations"
    [_, reason] = fed(EarlyStopping(job("patience=1")), 0.5, 0.5)
    assert reason == "accuracy has not improved on 0.5 of round 1 for 1 evaluation"


def test_a_better_evaluation_starts_the_count_anew(job):
    assert fed(EarlyStopping(job("patience=2")), 1, 0, 2, 1, 3, 2, 4, 3) == [None] * 8


def test_an_evaluation_without_the_metric_does_not_count(job):
    said = fed(EarlyStopping(job("patience=2")), 0.9, 0.8, math.nan, None, 0.7)
    assert said[:-1] == [None] * 4
    assert said[-1] == "accuracy has not improved on 0.9 of round 1 for 2 evaluations"


def test_patience_looks_at_the_key_metric_in_its_direction(job):
    down = "workflow.args.key_metric=loss", "workflow.args.key_metric_mode=min"
    stopping = EarlyStopping(job("patience=2", *down))
    assert fed(stopping, 3, 2, 1, metric="loss") == [None] * 3
    assert stopping.best == (3, 1.0)
    stopping.evaluated(4, {"loss": 1.5, "accuracy": 1})
    verdict = stopping.evaluated(5, {"loss": 1.2, "accuracy": 2})
    assert verdict.stop == "loss has not improved on 1 of round 3 for 2 evaluations"


def test_a_round_that_both_reaches_the_condition_and_is_best_is_the_best(job):
    stopping = EarlyStopping(job("stop_when=accuracy >= 0.9", "patience=1"))
    fed(stopping, 0.5, 0.95)
    assert stopping.best == (2, 0.95)
    assert "reached" in stopping.reason


def test_the_first_reason_stays(job):
    stopping = EarlyStopping(job("stop_when=accuracy >= 0.9", "patience=1"))
    assert len(set(fed(stopping, 0.95, 0.94, 0.1, 0.99))) == 1
    assert stopping.reason == "accuracy reached 0.95 >= 0.9 in round 1"


def test_a_metric_that_no_site_reports_is_warned_of_once(job):
    stopping = EarlyStopping(job("stop_when=acuracy >= 0.9"))
    [warning] = stopping.evaluated(1, {"loss": 1.0, "accuracy": 0.5}).warnings
    assert warning == (
        "stop_when waits for acuracy, which is not among the metrics of round 1 (they report "
        "accuracy, loss); unless the sites' scripts send it, it never ends the job; did you mean "
        "accuracy?"
    )
    assert stopping.evaluated(2, {"loss": 1.0}).warnings == ()


def test_each_key_that_waits_in_vain_has_its_warning(job):
    stopping = EarlyStopping(job("stop_when=loss < 1", "patience=1"))
    patience, stop_when = stopping.evaluated(2, {}).warnings
    assert patience.startswith("patience waits for accuracy, which is not among the metrics of")
    assert stop_when.startswith("stop_when waits for loss, ")
    assert "(they report none)" in stop_when
    # One warning is enough where both wait for the same metric.
    assert len(EarlyStopping(job("stop_when=accuracy > 1", "patience=1")).evaluated(1, {})[1]) == 1


def test_a_metric_that_is_reported_as_nan_is_not_warned_of(job):
    stopping = EarlyStopping(job("stop_when=accuracy > 1", "patience=1"))
    assert stopping.evaluated(1, {"accuracy": None}).warnings == ()


def test_a_round_evaluated_anew_counts_once(job):
    stopping = EarlyStopping(job("patience=2"))
    for _ in range(5):
        assert stopping.evaluated(1, {"accuracy": 0.9}).stop is None
        assert stopping.evaluated(2, {"accuracy": 0.8}).stop is None
    assert stopping.evaluated(3, {"accuracy": 0.8}).stop is not None
    assert stopping.evaluated(2, {"accuracy": 0.8}).stop == stopping.reason


VALUES = st.none() | st.floats() | st.integers(0, 5).map(lambda n: n / 5)
HISTORIES = st.lists(
    st.tuples(st.integers(1, 3), st.dictionaries(st.sampled_from(["accuracy", "loss"]), VALUES)),
    max_size=15,
)


def numbered(gaps):
    """Give each table of metrics a round, one or a few after the last."""
    history, number = [], 0
    for gap, metrics in gaps:
        number += gap
        history.append((number, metrics))
    return history


@given(gaps=HISTORIES, cut=st.integers(0, 15), mode=st.sampled_from(["max", "min"]))
def test_fed_the_history_it_goes_on_as_if_it_had_never_been_interrupted(job, gaps, cut, mode):
    resolved = job("stop_when=loss < 0.3", "patience=2", f"workflow.args.key_metric_mode={mode}")
    history = numbered(gaps)
    whole, resumed = EarlyStopping(resolved), EarlyStopping(resolved, history[:cut])
    verdicts = [whole.evaluated(*evaluation) for evaluation in history]
    assert [resumed.evaluated(*evaluation) for evaluation in history[cut:]] == verdicts[cut:]
    assert (resumed.reason, resumed.best) == (whole.reason, whole.best)


@given(gaps=HISTORIES, mode=st.sampled_from(["max", "min"]))
def test_its_best_round_is_that_of_the_summary(job, gaps, mode):
    resolved = job(f"workflow.args.key_metric_mode={mode}", "stop_when=accuracy > 0.9")
    stopping, history = EarlyStopping(resolved), History(JobFacts.of(resolved))
    history.apply(ModelReady(bytes=1, tensors=1, digest=""))
    scored = dict(numbered(gaps))
    for number in range(1, max(scored, default=0) + 1):
        history.apply(finished(number))
        if number in scored:
            metrics = scored[number]
            stopping.evaluated(number, metrics)
            history.apply(Evaluated(round=number, metrics=metrics, seconds=0.0, down=Transfer()))
    best = summarize(history).best
    assert stopping.best == (best and (best.round, best.value))


def finished(number):
    return RoundFinished(
        round=number,
        digest="",
        download=0.0,
        train=0.0,
        upload_and_fold=0.0,
        checkpoint=0.0,
        weights={},
        metrics={},
        down=Transfer(),
        up=Transfer(),
    )
