"""The job file: HOCON as a typed, immutable `Job`, or all of its mistakes."""

from flstream.job.clients_section import ClientsSection
from flstream.job.job import Job
from flstream.job.keys import job_keys, job_schema
from flstream.job.load import load_job, make_job
from flstream.job.model_section import ModelSection
from flstream.job.problems import JobError, Problem
from flstream.job.stage import WorkflowArgs
from flstream.job.values import render_job, render_values

__all__ = [
    "ClientsSection",
    "Job",
    "JobError",
    "ModelSection",
    "Problem",
    "WorkflowArgs",
    "job_keys",
    "job_schema",
    "load_job",
    "make_job",
    "render_job",
    "render_values",
]
