"""The training of one site of a job in the foreground, in a copy of a run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from flstream.debugging import DebuggedSite, debugging
from flstream.errors import ResumeRefusedError, UsageError
from flstream.job import Job, JobError, render_job
from flstream.runs.job_match import different_keys, files_of, render_files
from flstream.runs.journal import read_history
from flstream.runs.resume import plan_resume
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.launcher import simulate
from flstream.text import brief_names

# What a run needs to resume; files of models are never written to, so they need no copies.
_COPIED = ("events.jsonl", "memory.jsonl", "sites", "updates")
_LINKED = ("checkpoints",)


def debug_site(job: Job, site: str, round_number: int, run: Path | None) -> DebuggedSite:
    """Train one site as a run does in a round, in this process, so that ``breakpoint()`` works.

    Args:
        job: The job, with the engine inline. Its code may have changed since the run.
        site: Name of the site.
        round_number: The round, from 1.
        run: Run directory with the models and states that the round begins with, of which nothing
            is changed; None for the initial model.

    Raises:
        UsageError: The job has no such site, the run no such round, or the site could not train;
            the message names the keys in which the run's job is another.
    """
    if site not in job.clients.site_names:
        raise UsageError(
            f"{site} is no site of the job, whose sites are {brief_names(job.clients.site_names)}"
        )
    debugged = DebuggedSite(site, round_number)
    source = None if run is None else RunDirectory(run.absolute())
    parent = None if source is None else source.path.parent
    with tempfile.TemporaryDirectory(prefix=".flstream-debug-", dir=parent) as folder:
        copy = RunDirectory.create(job.name, Path(folder) / "run")
        if source is not None:
            _check_round(job, source, round_number)
            _copy(source, copy)
            copy.write(copy.job_files, render_files(job))
            copy.write(copy.job_file, render_job(job))
        with copy.in_use(), debugging(debugged):
            try:
                point = None if source is None else plan_resume(job, copy, round_number - 1)
                summary = simulate(job, copy, lambda *_: None, resume=point)
            except UsageError as error:
                if source is None or isinstance(error, JobError):  # of the job alone
                    raise
                reason = _reason(error, copy, source)
                if isinstance(error, ResumeRefusedError):
                    reason = (
                        f"the run in {run} no longer has all that round {round_number} began with: "
                        "checkpoints.keep has removed it, or a file is damaged; name another round "
                        f"({reason})"
                    )
                raise UsageError(reason + _differences(job, source)) from error
        if not debugged.has_trained:
            error_text = summary.error or f"{site} was not asked to train"
            if source is not None:
                error_text = _reason(error_text, copy, source) + _differences(job, source)
            raise UsageError(error_text)
    return debugged


def _check_round(job: Job, run: RunDirectory, round_number: int) -> None:
    """Check that a run has come to a round that the job has."""
    if not run.is_run:
        raise UsageError(f"{run.path} is not a run directory; name one with --run")
    completed = len(read_history(run.events).rounds)
    planned = job.planned_rounds or completed + 1  # a workflow without rounds has none planned
    last = min(completed + 1, planned)
    if round_number > last:
        raise UsageError(
            f"--round {round_number}: the run in {run.path} has {completed} rounds, and the job "
            f"{planned}; name one from 1 to {last}"
        )


def _reason(error: Exception | str, copy: RunDirectory, run: RunDirectory) -> str:
    """Return an error about the copy as one about the run, without advice on resuming it."""
    clauses = str(error).replace(str(copy.path), str(run.path)).split("; ")
    return "; ".join(clause for clause in clauses if "--resume" not in clause)


def _differences(job: Job, run: RunDirectory) -> str:
    """Return a clause on the keys in which a job differs from a run's; empty without any."""
    try:
        keys = different_keys(job, run, files_of(job))
    except JobError:  # the run's job file is damaged
        return ""
    # A site is debugged alone, whatever the run had.
    others = [clause for clause in keys if not clause.startswith("clients.parallel is")]
    if not others:
        return ""
    return (
        f"; the run was made by another job: {'; '.join(others)}; give the same --set, or the "
        f"run's own job: flstream debug {run.path} --run {run.path}"
    )


def _copy(run: RunDirectory, copy: RunDirectory) -> None:
    """Copy what a run resumes from; its models are links to the same files."""
    for name in (*_COPIED, *_LINKED):
        source, target = run.path / name, copy.path / name
        function = os.link if name in _LINKED else shutil.copy2
        if source.is_dir():
            shutil.copytree(source, target, copy_function=function, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, target)
