"""Federated averaging (McMahan et al. 2017, arXiv:1602.05629)."""

from __future__ import annotations

from flstream.job import Job
from flstream.workflows.federation import Federation, GlobalModel, TrainingT
from flstream.workflows.sampling import sample_sites
from flstream.workflows.stopping import EarlyStopping


def fedavg(federation: Federation[TrainingT], job: Job) -> GlobalModel:
    """Run a job's rounds, from wherever the federation's model is.

    Each round samples sites, has them train the global model, and folds what they send into the
    next one: by default the mean, weighted by their numbers of examples.

    Returns:
        The model of the last round.
    """
    stopping = EarlyStopping(job, federation.evaluations)
    evaluated = {round_number for round_number, _ in federation.evaluations}
    model = federation.model()
    while True:
        if evaluation_is_due(job, model.round) and model.round not in evaluated:
            metrics = federation.evaluate(model, federation.sites)
            for warning in stopping.evaluated(model.round, metrics).warnings:
                federation.warn(warning)
        if model.round >= job.rounds:
            return model
        if stopping.reason is not None:
            federation.end_early(model, stopping.reason)
            return model
        cohort = sample_sites(federation.sites, job.clients.cohort_size, job.seed, model.round + 1)
        model = federation.aggregate(model, federation.train(model, cohort))


def evaluation_is_due(job: Job, round_number: int) -> bool:
    """Whether a job has its sites evaluate the model of a round."""
    every = job.workflow.args.evaluate_every
    is_last = round_number == job.rounds
    return round_number > 0 and every > 0 and (round_number % every == 0 or is_last)
