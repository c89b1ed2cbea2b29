"""What a private job's keys come to; mistakes in them are among those of all keys."""

import importlib.util

import pytest

from flstream.aggregation.accountant import Accounting
from flstream.aggregation.rules import AggregationRule
from flstream.runs.stopping import EarlyStopping
from flstream.server.privacy import PrivateFolds

JOB = "clients { count = 10, per_round = 4 }, privacy { type = central }"


@pytest.fixture
def private(load):
    return lambda *overrides: load(JOB, *overrides)


def test_the_cohort_of_the_noise_is_the_jobs_own_or_the_simulated_one(private):
    for overrides, due in [
        ((), (4, 10)),
        (("privacy.noise_cohort_size=1000", "privacy.population=1000000"), (1000, 1_000_000)),
    ]:
        job = private(*overrides)
        assert (job.privacy.cohort(job.clients), job.privacy.drawn_from(job.clients)) == due
        accounting = Accounting.of(job)
        assert (accounting.cohort, accounting.population) == due
        rule = PrivateFolds(job, EarlyStopping(job)).rule(AggregationRule(), 1, 0)
        assert rule.mechanism.noise == 1 / due[0]


def test_adaptive_clipping_gives_the_updates_more_noise_so_that_both_cost_as_much(private):
    adaptive = "privacy.clipping.type=adaptive"
    job = private(adaptive, "privacy.clipping.count_stddev=2")
    both = job.privacy.update_noise_multiplier(job.clients)
    assert both**-2 + (2 * 2.0) ** -2 == pytest.approx(1.0)
    assert private().privacy.update_noise_multiplier(job.clients) == 1.0
    job = private(adaptive, "privacy.noise_cohort_size=1000", "privacy.population=10000")
    assert job.privacy.count_stddev(job.clients) == 50.0  # as the paper has it


@pytest.mark.parametrize(
    ("text", "module", "key", "words"),
    [
        (JOB, "dp_accounting", "privacy.type", "there is no module dp_accounting"),
        ("tracking.type = tensorboard", "tensorboard", "tracking.type", "'flstream[tensorboard]'"),
        ("tracking.type = mlflow", "mlflow", "tracking.type", "'flstream[tracking]'"),
    ],
)
def test_without_the_extra_a_job_that_needs_it_is_refused_with_what_to_install(
    load, mistakes, monkeypatch, text, module, key, words
):
    find = importlib.util.find_spec

    def without(name, *args):
        return None if name.split(".")[0] == module else find(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    load()
    [problem] = mistakes(text)
    assert problem.key == key
    assert words in str(problem)
