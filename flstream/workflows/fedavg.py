"""Federated averaging (McMahan et al. 2017, arXiv:1602.05629)."""

from __future__ import annotations

from flstream.aggregation.mean import WeightedMean
from flstream.job import Job
from flstream.workflows.federation import Federation
from flstream.workflows.sampling import sample_sites


def fedavg(federation: Federation, job: Job) -> None:
    """Run a job's rounds.

    Each round samples sites, has them train the global model, and makes the mean of what they
    send, weighted by their numbers of examples, the next global model.
    """
    model = federation.initial_model()
    while model.round < job.rounds:
        cohort = sample_sites(federation.sites, job.clients.cohort_size, job.seed, model.round + 1)
        training = federation.train(model, cohort)
        model = federation.aggregate(model, training, WeightedMean())
        if _evaluation_is_due(job, model.round):
            federation.evaluate(model, federation.sites)


def _evaluation_is_due(job: Job, round_number: int) -> bool:
    every = job.workflow.args.evaluate_every
    return every > 0 and (round_number % every == 0 or round_number == job.rounds)
