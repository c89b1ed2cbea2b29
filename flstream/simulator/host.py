"""The fork server of a job: what is in its environment, and in its memory before it forks.

Its imports take longer than all else until a job begins. So it begins with what every job needs
while the job is still being read; this module itself imports little for the same reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flstream.simulator.processes import ProcessHost

if TYPE_CHECKING:
    from flstream.job import Job


def new_host() -> ProcessHost:
    """What the processes of some job will start from: to be told :func:`needs_of` the job."""
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
    """What a job's processes start from."""
    host = new_host()
    host.prepare(needs_of(job))
    return host


def needs_of(job: Job) -> dict[str, str]:
    """The variables with which :meth:`ProcessHost.prepare` makes a host ready for a job."""
    from flstream.simulator.imports import LIBRARIES, library_imports, render_imports

    threads = str(job.clients.threads)
    source = job.train.source
    imports = library_imports(source) if source is not None else []
    return {
        LIBRARIES: render_imports(imports),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
    }
