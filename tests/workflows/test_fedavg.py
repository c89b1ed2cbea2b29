"""The rounds of FedAvg, with a federation that only writes down what it is asked for."""

from pathlib import Path

import pytest

from flstream.job import load_job
from flstream.workflows.fedavg import fedavg
from flstream.workflows.federation import GlobalModel


class Recorder:
    """A federation that notes its calls.

    Args:
        scores: the accuracy of the model of each round, from round 1; None where none is reported.
        goes_on_from: the round whose model is there.
        evaluated: the last round whose evaluation is done.
        benched: who is asked no more, by the round after which that is so.
    """

    def __init__(self, scores=(), goes_on_from=0, evaluated=0, benched=None):
        self.calls = []
        self.warnings = []
        self.ended_early = []
        self._scores = scores
        self._goes_on_from = goes_on_from
        self._evaluated = evaluated
        self._benched = benched or {}
        self._last = goes_on_from

    @property
    def sites(self):
        gone = {site for number, site in self._benched.items() if number <= self._last}
        return [site for site in ("site-1", "site-2", "site-3") if site not in gone]

    @property
    def evaluations(self):
        return [(number, self._metrics(number)) for number in range(1, self._evaluated + 1)]

    def model(self):
        return GlobalModel(self._goes_on_from, Path("the model"), f"digest {self._goes_on_from}")

    def train(self, model, cohort):
        self.calls.append(("train", model.round, tuple(cohort)))
        return f"updates of round {model.round + 1}"

    def aggregate(self, model, training):
        assert training == f"updates of round {model.round + 1}"
        self.calls.append(("aggregate", model.round))
        self._last = model.round + 1
        return GlobalModel(self._last, Path("the next model"), f"digest {self._last}")

    def evaluate(self, model, cohort):
        self.calls.append(("evaluate", model.round, tuple(cohort)))
        return self._metrics(model.round)

    def warn(self, message):
        self.warnings.append(message)

    def end_early(self, model, reason):
        assert model.round == self._last
        self.ended_early.append(reason)

    def _metrics(self, number):
        value = self._scores[number - 1] if number <= len(self._scores) else None
        return {} if value is None else {"accuracy": value}


@pytest.fixture
def run(tmp_path):
    """Runs a job of five rounds, and gives the federation and the model that it ended with."""
    (tmp_path / "model.py").write_text("def build(): ...")
    (tmp_path / "client.py").write_text("")

    def run(federation=None, *overrides):
        (tmp_path / "job.conf").write_text("""
            name = j, rounds = 5
            clients { count = 3, per_round = 2 }
            model { factory = "model:build" }
            train { script = client.py }
        """)
        federation = federation or Recorder()
        return federation, fedavg(federation, load_job(tmp_path / "job.conf", overrides))

    return run


def rounds_of(federation, what):
    return [call[1] for call in federation.calls if call[0] == what]


def test_each_round_trains_the_last_model_and_aggregates_what_came_of_it(run):
    federation, model = run(None, "workflow.args.evaluate_every=0")
    assert [call[:2] for call in federation.calls] == [
        (what, number) for number in range(5) for what in ("train", "aggregate")
    ]
    assert {len(call[2]) for call in federation.calls if call[0] == "train"} == {2}
    assert model.digest == "digest 5"


def test_all_sites_evaluate_every_so_many_rounds_and_after_the_last(run):
    federation, _ = run(None, "workflow.args.evaluate_every=2")
    everyone = ("site-1", "site-2", "site-3")
    assert [call for call in federation.calls if call[0] == "evaluate"] == [
        ("evaluate", number, everyone) for number in (2, 4, 5)
    ]
    assert rounds_of(run(None, "workflow.args.evaluate_every=0")[0], "evaluate") == []


def test_the_job_ends_once_its_aim_is_reached_and_says_why(run):
    federation = Recorder([0.5, 0.8, 0.9, 0.95])
    _, model = run(federation, 'stop_when="accuracy >= 0.85"')
    assert model.round == 3
    assert rounds_of(federation, "train") == [0, 1, 2]
    [reason] = federation.ended_early
    assert "accuracy reached 0.9" in reason


def test_the_job_ends_after_so_many_evaluations_without_a_better_one(run):
    federation = Recorder([0.8, 0.7, 0.75, 0.9, 0.9])
    assert run(federation, "patience=2")[1].round == 3
    federation = Recorder([0.8, 0.7, 0.81, 0.7, 0.9])
    assert run(federation, "patience=2")[1].round == 5
    assert federation.ended_early == []


def test_a_job_that_goes_on_does_what_is_left(run):
    federation, model = run(Recorder(goes_on_from=3, evaluated=3))
    assert rounds_of(federation, "train") == [3, 4]
    assert rounds_of(federation, "evaluate") == [4, 5]
    assert model.round == 5


def test_an_evaluation_that_is_due_is_done_before_anything_else(run):
    federation, _ = run(Recorder([0.5] * 5, goes_on_from=3, evaluated=2))
    assert [call[:2] for call in federation.calls[:2]] == [("evaluate", 3), ("train", 3)]
    # Of the last round, too, and not if none is due.
    federation, _ = run(Recorder(goes_on_from=5, evaluated=4))
    assert federation.calls == [("evaluate", 5, ("site-1", "site-2", "site-3"))]
    federation, _ = run(Recorder(goes_on_from=3), "workflow.args.evaluate_every=2")
    assert [call[:2] for call in federation.calls[:1]] == [("train", 3)]
    assert run(Recorder(goes_on_from=0))[0].calls[0][:2] == ("train", 0)


def test_what_ends_a_job_is_the_same_after_an_interruption(run):
    scores = [0.8, 0.7, 0.75, 0.9, 0.9]
    assert run(Recorder(scores), "patience=2")[1].round == 3
    for last, evaluated in ((1, 1), (2, 1), (2, 2), (3, 2), (3, 3)):
        federation = Recorder(scores, goes_on_from=last, evaluated=evaluated)
        assert run(federation, "patience=2")[1].round == 3
        assert len(federation.ended_early) == 1
    # What had been decided stays decided: nobody is asked for anything.
    federation = Recorder(scores, goes_on_from=3, evaluated=3)
    run(federation, "patience=2")
    assert federation.calls == []


def test_a_metric_that_is_waited_for_in_vain_is_warned_of_once(run):
    federation = Recorder()
    run(federation, 'stop_when="accuracy >= 0.85"')
    [warning] = federation.warnings
    assert "stop_when waits for accuracy" in warning


def test_the_cohort_of_a_round_follows_from_the_seed_wherever_the_job_goes_on(run):
    def cohorts(federation):
        return {call[1]: call[2] for call in federation.calls if call[0] == "train"}

    whole = cohorts(run(Recorder())[0])
    assert len(set(whole.values())) > 1
    for last in range(1, 5):
        assert cohorts(run(Recorder(goes_on_from=last, evaluated=last))[0]) == {
            number: cohort for number, cohort in whole.items() if number >= last
        }
    assert cohorts(run(Recorder(), "seed=1")[0]) != whole


def test_a_site_that_is_benched_is_neither_sampled_nor_asked_to_evaluate(run):
    federation, _ = run(Recorder(benched={2: "site-2"}))
    for call in federation.calls:
        if call[0] == "train" and call[1] >= 2:
            assert call[2] == ("site-1", "site-3")
        if call[0] == "evaluate":
            assert ("site-2" in call[2]) == (call[1] < 2)
