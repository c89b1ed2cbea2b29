"""The keys of privacy: what they take, and what is said of mistakes and of what does not go."""

import importlib.util
import math

import pytest

from flstream.job import Job, JobError, load_job

JOB = """
name = test, rounds = 3
clients { count = 10, per_round = 4 }
model { factory = "json:loads" }
train { script = client.py }
privacy { type = central }
"""


@pytest.fixture
def load(tmp_path):
    (tmp_path / "client.py").write_text("import flstream.client as flare\nflare.is_evaluate()\n")
    (tmp_path / "mine.py").write_text("def own(run): ...")
    (tmp_path / "job.conf").write_text(JOB)

    def load(*overrides: str) -> Job:
        return load_job(tmp_path / "job.conf", overrides)

    return load


def test_a_job_is_not_private_unless_it_says_so(load):
    assert not load("privacy.type=none").privacy.is_on
    assert load().privacy.is_on
    assert load("workflow.type=mine.py:own").privacy.is_on


def test_the_cohort_of_the_noise_is_the_jobs_own_or_the_simulated_one(load):
    job = load()
    assert (job.privacy.cohort(job.clients), job.privacy.drawn_from(job.clients)) == (4, 10)
    job = load("privacy.noise_cohort_size=1000", "privacy.population=1000000")
    assert job.privacy.cohort(job.clients) == 1000
    assert job.privacy.drawn_from(job.clients) == 1_000_000


def test_adaptive_clipping_gives_the_updates_more_noise_so_that_both_cost_as_much(load):
    job = load("privacy.clipping.type=adaptive", "privacy.clipping.count_stddev=2")
    both = job.privacy.update_noise_multiplier(job.clients)
    assert both**-2 + (2 * 2.0) ** -2 == pytest.approx(1.0)
    assert load().privacy.update_noise_multiplier(job.clients) == 1.0
    simulated = ["privacy.noise_cohort_size=1000", "privacy.population=10000"]
    job = load("privacy.clipping.type=adaptive", *simulated)
    assert job.privacy.count_stddev(job.clients) == 50.0  # as the paper has it


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["aggregation.method=median"], "aggregation.method: given \"median\"; must be mean where"),
        (["aggregation.weights.site-1=2"], "aggregation.weights: given {"),
        (["aggregation.clip_norm=1"], "aggregation.clip_norm: given 1.0; must be null where"),
        (["workflow.type=cyclic"], "workflow.type: given \"cyclic\"; must be fedavg, or a"),
        (["workflow=[{},{type=cyclic}]"], "workflow[1].type: given \"cyclic\"; must be fedavg"),
        (["privacy.noise_multiplier=0"], "privacy.noise_multiplier: given 0; must be a number"),
        (["privacy.noise_cohort_size=11"], "privacy.population: given 10; must be at least the"),
        (["privacy.delta=1"], "privacy.delta: given 1; must be a number above 0 and below 1"),
        (["privacy.type=local"], "privacy.type: given \"local\"; must be one of none, central"),
        (["privacy.clipping.tpye=fixed"], "privacy.clipping.tpye: unknown key"),
        (["privacy.clipping.type=adaptive"], "must be below twice privacy.clipping.count_stddev"),
        (
            ["privacy.accountant=pld", "privacy.sampling=without_replacement"],
            "privacy.sampling: given \"without_replacement\"; must be poisson",
        ),
        (["stop_when=epsilon < 3"], 'stop_when: given "epsilon < 3"; must be epsilon > a number'),
        (
            ["stop_when=accuracy > 0.9", "workflow.args.evaluate_every=0"],
            "stop_when: given \"accuracy > 0.9\"; must be null where workflow.args.evaluate_every",
        ),
        (
            ["stop_when=epsilon > 3", "workflow.args.evaluate_every=0", "privacy.type=none"],
            "must be null where workflow.args.evaluate_every is 0",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named(load, overrides, message):
    with pytest.raises(JobError) as caught:
        load(*overrides)
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


def test_epsilon_ends_a_private_job_also_where_nothing_is_evaluated(load):
    job = load("stop_when=epsilon > 3", "workflow.args.evaluate_every=0")
    assert job.stop_when == "epsilon > 3"
    assert math.isfinite(job.privacy.delta)


def test_without_the_extra_a_private_job_is_refused_with_what_to_install(load, monkeypatch):
    find = importlib.util.find_spec

    def without(name, *args):
        return None if name == "dp_accounting" else find(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert not load("privacy.type=none").privacy.is_on
    with pytest.raises(JobError, match=r"privacy.type: given central, and there is no module dp_a"):
        load()
