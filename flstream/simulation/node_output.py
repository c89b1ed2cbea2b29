"""What processes print on nodes that do not see the run directory, as it comes into it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from flstream.client.site_folder import SPLIT
from flstream.engines.node_messages import Output
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory

_WORKER = re.compile(r"worker-([1-9][0-9]{0,8})")
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class NodeOutput:
    """Writes what nodes send where processes of this machine would have written it.

    Args:
        job: The job, whose sites and workers alone have such files.
        run: Its run directory.
    """

    def __init__(self, job: Job, run: RunDirectory) -> None:
        self._sites = frozenset(job.clients.site_names)
        self._run = run

    def take(self, output: Output) -> None:
        """Take a message of a node; any thread may call this.

        What cannot be written is left out: the disk's being full ends the run elsewhere, with a
        sentence, and no log is worth a run.
        """
        path = self._path(output)
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

    def _path(self, output: Output) -> Path | None:
        """Where output belongs; None if its name is none of the job's."""
        match output.kind:
            case "worker log":
                # There are never more of them than sites, however many nodes have room for.
                number = _WORKER.fullmatch(output.name)
                is_one = number is not None and int(number[1]) <= len(self._sites)
                return self._run.log(output.name) if is_one else None
            case "site log" if output.name in self._sites:
                return self._run.site_log(output.name)
            case "split" if output.name in self._sites:
                return self._run.site(output.name) / SPLIT
        return None
