"""The fork server of a job: what is in its environment, and in its memory before it forks."""

from __future__ import annotations

from flstream.job import Job
from flstream.simulator.imports import LIBRARIES, library_imports, render_imports
from flstream.simulator.processes import ProcessHost


def host_for(job: Job) -> ProcessHost:
    """What a job's processes start from.

    It imports for longer than anything else takes until a job begins: have it begin early.
    """
    threads = str(job.clients.threads)
    source = job.train.source
    imports = library_imports(source) if source is not None else []
    return ProcessHost(
        {
            LIBRARIES: render_imports(imports),
            # Each thread that allocates would otherwise get an arena of its own, which glibc keeps.
            "MALLOC_ARENA_MAX": "2",
            # Tensors of 2 MiB and more come in huge pages, where the system has them: a received
            # model's pages are then made ready in a fraction of the time.
            "THP_MEM_ALLOC_ENABLE": "1",
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
        }
    )
