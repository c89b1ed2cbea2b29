"""The fork server of a job, with its environment and its imports.

Its imports take longer than all else until a job begins. They are therefore begun while the job
file is still being read; this module itself imports little for the same reason.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flstream.engines.processes import ProcessHost

if TYPE_CHECKING:
    from flstream.job import Job

SOURCE = "FLSTREAM_SOURCE"
"""Environment variable with the path of the training code, whose libraries are imported."""
PRELOAD = "FLSTREAM_PRELOAD"
"""Environment variable with the libraries that the job asks for, with commas."""
QUIET_ARROW = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Setting of Arrow's allocator, which pandas imports: no thread that gives memory back."""


def new_host() -> ProcessHost:
    """Create a process host for a job that is not loaded yet.

    Before it is entered, :meth:`ProcessHost.prepare` must be called with :func:`needs_of` the job.
    """
    return ProcessHost(
        {
            # Each thread that allocates would otherwise get an arena of its own, which glibc keeps.
            "MALLOC_ARENA_MAX": "2",
            # Tensors of 2 MiB and more come in huge pages, where the system has them: a received
            # model's pages are then made ready in a fraction of the time.
            "THP_MEM_ALLOC_ENABLE": "1",
        }
    )


def host_for(job: Job) -> ProcessHost:
    """Create a process host that is prepared for a job."""
    host = new_host()
    host.prepare(needs_of(job))
    return host


def needs_of(job: Job) -> dict[str, str]:
    """Return the environment variables of a job's processes, for :meth:`ProcessHost.prepare`."""
    threads, variables = str(job.clients.threads), {}
    # A command's processes are not forked from here: what they import is their own.
    if job.train.command is None:
        variables = {SOURCE: str(job.train.source or ""), PRELOAD: ",".join(job.train.preload)}
    return {
        **variables,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        # Without these, libraries warn in each process that training code forks.
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"),
        "KMP_WARNINGS": os.environ.get("KMP_WARNINGS", "off"),
        **QUIET_ARROW,
    }
