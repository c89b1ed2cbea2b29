"""The environment that runs a job: this machine."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.engines.processes import OF_A_RUN
from flstream.errors import UsageError
from flstream.recipe.arguments import notice
from flstream.recipe.run_result import RunFailedError, RunResult
from flstream.report.console import make_console
from flstream.report.running import run_and_show
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.places import this_place

if TYPE_CHECKING:
    from flstream.recipe.fed_job import FedJob

MODELS = "models"
"""Folder below a workspace's root that has the initial weights of models given as instances."""

# A process has one fork server for all of its threads, which a run ends when it is over.
_one_run = threading.Lock()
_WITHIN_A_RUN = (
    "a process of a run would start a run itself, since it imports the program; "
    'put what runs the job under: if __name__ == "__main__":'
)
_GPUS = re.compile(r"\s*\[[^][]+\](\s*,\s*\[[^][]+\])*\s*|[^][,]+(,[^][,]+)*")


class SimEnv:
    """Simulation on this machine: a server, and a process for each client.

    Args:
        num_clients: Number of clients; 0 for as many as ``clients`` names.
        clients: Names of the clients (sites); None for site-1, site-2 and so on.
        num_threads: Number of processes that run them; None for one each, up to 16.
        gpu_config: GPUs of each process in turn, such as ``0,1`` or ``[0,1],[2,3]``; None for all.
        log_config: Accepted for NVFlare's sake: each site's output is in its log.
        workspace_root: Folder for run directories.
        quiet: Whether to print no progress and no result.
        engine: ``inline`` for a run in this process, one client after another, in which
            ``breakpoint()`` works; None for what the job has.
        pdb: Whether an exception in training code opens pdb there, with the engine inline.

    Attributes:
        client_settings: Keys of a job's section ``clients``, by their dotted names.

    Raises:
        UsageError: The clients or the GPUs are not given as above.
    """

    def __init__(
        self,
        *,
        num_clients: int = 0,
        clients: Sequence[str] | None = None,
        num_threads: int | None = None,
        gpu_config: str | None = None,
        log_config: str | None = None,
        workspace_root: str | Path = "runs",
        quiet: bool = False,
        engine: str | None = None,
        pdb: bool = False,
    ) -> None:
        if not num_clients and not clients:
            raise UsageError("SimEnv has no clients; give num_clients=2, or clients=[...]")
        if num_clients and clients and len(clients) != num_clients:
            raise UsageError(
                f"SimEnv has num_clients={num_clients} and {len(clients)} names of clients; "
                "leave num_clients out"
            )
        is_text = isinstance(gpu_config, str)
        if gpu_config is not None and not (is_text and _GPUS.fullmatch(gpu_config)):
            raise UsageError(
                f"gpu_config is {gpu_config!r}: write 0,1 for a GPU each, or [0,1],[2]"
            )
        if log_config is not None:
            notice("log_config is not needed: sites/<name>/log.txt has what a site prints")
        text = gpu_config or ""
        groups = re.findall(r"\[([^]]*)\]", text) or text.split(",")
        settings = {
            "clients.names" if clients else "clients.count": list(clients or ()) or num_clients,
            "clients.parallel": num_threads,
            "clients.gpus": [re.sub(r"\s", "", group) for group in groups if group] or None,
        }
        self.client_settings = {k: value for k, value in settings.items() if value is not None}
        self.workspace_root = Path(workspace_root)
        self.quiet, self.engine, self.pdb = quiet, engine, pdb

    def run(self, job: FedJob) -> RunResult:
        """Run a job, and show its progress and its result.

        Returns:
            The run, once it is finished.

        Raises:
            UsageError: This is a process of a run itself.
            JobError: The job has mistakes; the message names all of them.
            RunFailedError: The run failed.
            KeyboardInterrupt: It was stopped by Ctrl-C; what it had completed is kept.
        """
        if this_place() is not None:  # whose run has the lock
            raise UsageError(_WITHIN_A_RUN)
        settings: dict[str, Any] = dict(self.client_settings)
        settings |= {"engine.type": self.engine} if self.engine is not None else {}
        settings |= {"engine.pdb": True} if self.pdb else {}
        with _one_run:
            # Another thread's run sets it while its processes start, so it is looked at in here.
            if OF_A_RUN in os.environ:
                raise UsageError(_WITHIN_A_RUN)
            resolved = job.resolve(settings, self.workspace_root / MODELS)
            directory = RunDirectory.create(resolved.name, root=self.workspace_root)
            console = make_console()
            console.quiet = self.quiet
            summary = run_and_show(resolved, directory, console)
        if summary.status == "stopped":
            raise KeyboardInterrupt
        run = RunResult(directory.path)
        if summary.status == "failed":
            raise RunFailedError(run)
        return run
