"""Metrics come in one order everywhere, and what is no number is not taken for one."""

from flstream.report.metrics import Metric, last_scored, metrics_of, values_by_round
from flstream.runs.summary import BestSummary, Summary

LOSS, ACCURACY, TRAIN_LOSS = Metric("", "loss"), Metric("", "accuracy"), Metric("train", "loss")


def test_those_that_decide_come_first_and_what_training_reported_last():
    row = {"round": 1, "train": {"loss": 0.5}, "loss": 0.7, "accuracy": 0.6}
    decided = Summary(metrics=[row], best=BestSummary(1, "accuracy", 0.6))
    assert metrics_of([decided]) == [ACCURACY, LOSS, TRAIN_LOSS]
    assert metrics_of([Summary(metrics=[row])]) == [LOSS, ACCURACY, TRAIN_LOSS]
    assert [metric.title for metric in (ACCURACY, TRAIN_LOSS)] == ["accuracy", "train loss"]
    # What was not finite is left out.
    rows = [{**row, "loss": float("nan"), "train": {"loss": None}}, {"round": 2, "loss": None}]
    assert values_by_round(Summary(metrics=rows)) == {1: {ACCURACY: 0.6}, 2: {}}
    assert metrics_of([Summary(metrics=rows)]) == [ACCURACY]


def test_the_last_scored_model_is_found():
    rows = [
        {"round": 1, "loss": 0.1, "accuracy": 0.9},
        {"round": 2, "loss": 0.2, "accuracy": None},
        {"round": 3, "train": {"loss": 0.3}},
    ]
    scored = last_scored(Summary(metrics=rows, best=BestSummary(1, "accuracy", 0.9)))
    # That the last one had no score is told, rather than an earlier one's.
    assert scored is not None
    assert (scored[0], [*scored[1].items()]) == (2, [("accuracy", None), ("loss", 0.2)])
    assert last_scored(Summary(metrics=rows[2:])) is None
