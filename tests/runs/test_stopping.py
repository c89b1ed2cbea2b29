"""When a job ends early: it follows from the evaluations, and from nothing else."""

import math

import pytest
from journal_support import a_job

from flstream.runs.stopping import EarlyStopping


def stopping(stop_when=None, patience=None, **args):
    job = a_job(50, stop_when=stop_when, patience=patience, workflow={"args": args})
    return EarlyStopping(job)


def fed(job_end, *values, metric="accuracy"):
    """Feed one value a round, from round 1 on; return what each evaluation said about stopping."""
    reasons = []
    for number, value in enumerate(values, start=1):
        job_end.evaluated(number, {metric: value})
        reasons.append(job_end.reason)
    return reasons


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("stop_when", "patience", "values", "reason"),
    [
        (None, None, (0.5, 0.5, 1.0, 0.1, None), None),
        ("accuracy >= 0.97", None, (0.5, 0.9699999, 0.971), "reached 0.971 >= 0.97 in round 3"),
        ("accuracy >= 0.5", None, (0.4, 0.5), "reached 0.5 >= 0.5 in round 2"),
        ("accuracy > 0.5", None, (0.5, 0.6), "reached 0.6 > 0.5 in round 2"),
        ("accuracy <= 0.5", None, (0.6, 0.5), "reached 0.5 <= 0.5 in round 2"),
        ("accuracy < 0.5", None, (0.5, 0.4), "reached 0.4 < 0.5 in round 2"),
        # With as many digits as the condition needs.
        ("accuracy > 0.97", None, (0.9700000000012345,), "0.970000000001 > 0.97 in round 1"),
        (None, 3, (0.5, 0.7, 0.91, 0.91, 0.9, 0.2), "on 0.91 of round 3 for 3 evaluations"),
        (None, 1, (0.5, 0.5), "has not improved on 0.5 of round 1 for 1 evaluation"),
        (None, 2, (1, 0, 2, 1, 3, 2, 4, 3), None),
        # What is not finite neither stops nor improves, and does not count.
        (None, 2, (0.9, 0.8, NAN, None, 0.7), "improved on 0.9 of round 1 for 2 evaluations"),
        ("accuracy >= 0.5", 1, (None, NAN, INF, -INF), None),
        ("accuracy < 0.5", 1, (None, NAN, INF, -INF), None),
        # A round that reaches the condition is one that is better, too.
        ("accuracy >= 0.9", 1, (0.5, 0.95), "reached 0.95 >= 0.9 in round 2"),
    ],
)  # fmt: skip
def test_it_stops_in_the_round_that_gives_a_reason_and_says_so(stop_when, patience, values, reason):
    job_end = stopping(stop_when, patience)
    *before, last = fed(job_end, *values)
    assert before == [None] * len(before)
    assert job_end.reason == last
    assert (last is None) == (reason is None)
    assert reason is None or (last.startswith("accuracy ") and last.endswith(reason))


def test_patience_looks_at_the_key_metric_in_its_direction():
    job_end = stopping(patience=2, key_metric="loss", key_metric_mode="min")
    assert fed(job_end, 3, 2, 1, metric="loss") == [None] * 3
    assert job_end.best == (3, 1.0)
    job_end.evaluated(4, {"loss": 1.5, "accuracy": 1})
    job_end.evaluated(5, {"loss": 1.2, "accuracy": 2})
    assert job_end.reason == "loss has not improved on 1 of round 3 for 2 evaluations"


def test_the_first_reason_stays_and_a_round_evaluated_anew_counts_once():
    job_end = stopping("accuracy >= 0.9", 1)
    assert len(set(fed(job_end, 0.95, 0.94, 0.1, 0.99))) == 1
    job_end = stopping(patience=2)
    for _ in range(5):
        job_end.evaluated(1, {"accuracy": 0.9})
        job_end.evaluated(2, {"accuracy": 0.8})
        assert job_end.reason is None
    job_end.evaluated(3, {"accuracy": 0.8})
    assert job_end.reason is not None


@pytest.mark.parametrize(
    ("stop_when", "patience", "metrics", "starts"),
    [
        (None, None, {}, []),
        ("acuracy >= 1", None, {"loss": 1.0, "accuracy": 0.5}, ["stop_when waits for acuracy, "]),
        ("loss < 1", 1, {}, ["patience waits for accuracy, ", "stop_when waits for loss, "]),
        # One warning is enough where both wait for the same metric, and none for a NaN.
        ("accuracy > 1", 1, {}, ["stop_when waits for accuracy, "]),
        ("accuracy > 1", 1, {"accuracy": None}, []),
    ],
)
def test_a_metric_that_no_site_reports_is_warned_of_once(stop_when, patience, metrics, starts):
    job_end = stopping(stop_when, patience)
    warnings = job_end.evaluated(1, metrics)
    assert len(warnings) == len(starts)
    for warning, start in zip(warnings, starts, strict=True):
        assert warning.startswith(start)
        assert f"(they report {', '.join(sorted(metrics)) or 'none'})" in warning
        assert ("did you mean accuracy?" in warning) == ("acuracy," in warning)
    assert job_end.evaluated(2, metrics) == ()


def test_a_key_metric_of_the_job_that_no_site_reports_is_warned_of_once():
    job_end, metrics = stopping(key_metric="acuracy"), {"accuracy": 0.5, "loss": 1.0}
    [warning] = job_end.evaluated(1, metrics)
    assert warning.startswith("key_metric is acuracy, which is not among the metrics of round 1 (")
    assert "no round is the best one; did you mean accuracy?" in warning
    assert job_end.evaluated(2, metrics) == ()
    assert stopping().evaluated(1, {"loss": 1.0}) == ()  # nobody has named accuracy
