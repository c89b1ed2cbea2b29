"""The job file: HOCON in, one typed and immutable `Job` out, or one message with all mistakes."""

from flstream.job.keys import Key, job_keys
from flstream.job.load import load_job
from flstream.job.problems import JobError, Problem
from flstream.job.render import render_job
from flstream.job.sections import (
    Aggregation,
    Clients,
    FedAvgArgs,
    Job,
    Model,
    Section,
    Streaming,
    Train,
    Workflow,
)

__all__ = [
    "Aggregation",
    "Clients",
    "FedAvgArgs",
    "Job",
    "JobError",
    "Key",
    "Model",
    "Problem",
    "Section",
    "Streaming",
    "Train",
    "Workflow",
    "job_keys",
    "load_job",
    "render_job",
]
