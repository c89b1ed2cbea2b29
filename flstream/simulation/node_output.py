"""What processes print on nodes that do not see the run directory, as it comes into it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flstream.client.site_folder import SPLIT
from flstream.engines.node_messages import Output
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class NodeOutput:
    """Writes what nodes send where processes of this machine would have written it.

    Args:
        job: The job, whose sites and workers alone have such files.
        run: Its run directory.
    """

    def __init__(self, job: Job, run: RunDirectory) -> None:
        sites = job.clients.site_names
        # There are never more of them, however many nodes have room for.
        workers = [f"worker-{number}" for number in range(1, len(sites) + 1)]
        self._paths: dict[tuple[str, str], Path] = {
            **{("worker log", name): run.log(name) for name in workers},
            **{("site log", name): run.site_log(name) for name in sites},
            **{("split", name): run.site(name) / SPLIT for name in sites},
        }

    def take(self, output: Output) -> None:
        """Take a message of a node; any thread may call this.

        What cannot be written is left out: the disk's being full ends the run elsewhere, with a
        sentence, and no log is worth a run.
        """
        path = self._paths.get((output.kind, output.name))
        if path is None:
            return
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            if output.kind == "split":
                temporary = path.with_name(f"{path.name}.tmp")
                temporary.write_bytes(output.data)
                temporary.replace(path)
                return
            with open(os.open(path, _APPEND, 0o644), "ab", buffering=0) as file:
                file.write(output.data)
