"""Environment that runs a job, and the ended run."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flstream.engines.processes import OF_A_RUN
from flstream.errors import SimulationError, UsageError
from flstream.job import Job, load_job
from flstream.recipe.arguments import checked
from flstream.report.console import make_console
from flstream.report.running import run_and_show
from flstream.report.text import counted
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.simulation.child import this_place

if TYPE_CHECKING:
    import torch

    from flstream.recipe.fed_job import FedJob

# A process has one fork server for all of its threads, which a run ends when it is over.
_one_run = threading.Lock()


@dataclass
class CommandLine:
    """Settings of a command line for all runs that a program starts.

    Attributes:
        settings: Values by the dotted names of keys, in place of the program's.
        run_dir: Folder of the run; None for one below the program's.
        resume: Whether to go on with a run that was cut off.
        from_round: Round whose end that run goes back to; None for where it was cut off.
        quiet: Whether runs print nothing.
        as_json: Whether stdout is for one JSON document.
        summaries: Content of ``summary.json`` of the ended runs.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None
    resume: bool = False
    from_round: int | None = None
    quiet: bool = False
    as_json: bool = False
    summaries: list[Summary] = field(default_factory=list)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Apply this command line to all runs of the block."""
        global _command_line
        _command_line = self
        try:
            yield
        finally:
            _command_line = None


_command_line: CommandLine | None = None


class RunFailedError(SimulationError):
    """A run that failed, which is its attribute ``run``."""

    def __init__(self, run: RunResult) -> None:
        super().__init__(f"{run.summary.error}\n  in the run directory {run.directory}")
        self.run = run


class RunResult:
    """Ended run, also of the command line; a notebook shows its charts.

    Args:
        path: Path of the run directory.

    Attributes:
        directory: Absolute path of the run directory.
        summary: Content of ``summary.json``: what the run was, its results and its cost.
        digest: Digest of the final model: equal digests are equal bits.
        metrics: For each round its number, its scores, and under ``train`` what sites reported.
        model: Path of the final model, a safetensors file.
        best_model: Path of the best model by the key metric; None where no model was scored.
        report: Path of the page about the run.

    Raises:
        UsageError: It has no sound ``summary.json``.
    """

    @checked
    def __init__(self, path: str | Path) -> None:
        files = RunDirectory(Path(path).absolute())
        try:
            summary = msgspec.json.decode(files.summary.read_bytes(), type=Summary)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} is not the directory of a run that has ended: its summary.json cannot be "
                f"read ({error}); name one such as runs/<job>-<time>"
            ) from error
        self.directory: Path = files.path
        self.summary = summary
        self.digest = summary.model.digest
        self.metrics: Sequence[Mapping[str, Any]] = summary.metrics
        self.model, self.report = files.final_model, files.report
        self.best_model = files.best_model if files.best_model.exists() else None

    def get_job_id(self) -> str:
        """Return the name of the run directory."""
        return self.directory.name

    def get_status(self) -> str:
        """Return ``finished``, ``failed`` or ``stopped``."""
        return self.summary.status

    def get_result(self, timeout: float = 0.0, clean_up: bool = True) -> str:
        """Return the path of the run directory, at once."""
        return str(self.directory)

    def abort(self) -> None:
        """Return at once: the run has ended."""

    def load(self, path: str | Path | None = None) -> dict[str, torch.Tensor]:
        """Return a model's tensors by name, in memory; the final one's for None."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path or self.model)
        except (OSError, TypeError, SafetensorError) as error:
            raise UsageError(
                f"{path or self.model} cannot be read ({error}); the run {self.get_status()}, and "
                f"its models are in {self.directory}/checkpoints"
            ) from error

    def __repr__(self) -> str:
        rounds = counted(self.summary.rounds_completed, "round")
        return f"<Run {self.directory.name}: {self.get_status()} after {rounds}>"

    def _repr_html_(self) -> str:
        from flstream.report.page import run_cell

        return run_cell(self.directory)


ARGUMENTS: Mapping[str, str] = {
    "clients.count": "num_clients",
    "clients.names": "clients",
    "clients.parallel": "num_threads",
    "clients.gpus": "gpu_config",
    "engine.type": "engine",
    "engine.pdb": "pdb",
    "memory_limit": "memory_limit",
}
"""Arguments of :class:`SimEnv` by the dotted keys that they become."""


class SimEnv:
    """Simulation on this machine: a server, and a process for each client.

    Args:
        num_clients: Number of clients; 0 for as many as ``clients`` names, or the job needs.
        clients: Names of the clients (sites); None for site-1, site-2 and so on.
        num_threads: Number of processes that run them; None for one each, up to 16.
        gpu_config: GPUs of each process in turn, such as ``0,1`` or ``[0,1],[2,3]``; None for all.
        log_config: Accepted for NVFlare's sake: each site's output is in its log.
        workspace_root: Folder for run directories.
        quiet: Whether to print no progress and no result.
        engine: ``inline`` for a run in this process, one client after another, in which
            ``breakpoint()`` works; None for what the job has.
        pdb: Whether an exception in training code opens pdb there, with the engine inline.
        memory_limit: Limit of the memory of all processes, such as ``2 GiB``; this process is moved
            into their control group for the run, and what it has before does not count.
        extra: Accepted for NVFlare's sake.

    Attributes:
        settings: Values of a job that it sets, by the dotted names of keys.

    Raises:
        UsageError: An argument is of another type.
    """

    @checked
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
        memory_limit: str | int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        gpus = None if gpu_config is None else _gpu_groups(gpu_config)
        processes = (num_clients or None, clients, num_threads, gpus)
        values = (*processes, engine, pdb or None, memory_limit)
        settings = zip(ARGUMENTS, values, strict=True)
        self.settings = {key: value for key, value in settings if value is not None}
        self.workspace_root, self.quiet = Path(workspace_root), quiet

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
        # Weights of models that are given as instances lie beside the run directories.
        models = self.workspace_root / "models"
        line = _command_line or CommandLine()
        opened = RunDirectory.reopen if line.resume else RunDirectory.create
        return _run(
            lambda: job.resolve({**self.settings, **line.settings}, models)[0],
            lambda job: opened(job.name, line.run_dir, self.workspace_root),
            quiet=self.quiet or line.quiet,
            resume=line.resume,
            line=_command_line,
        )


@checked
def run(
    job: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> RunResult:
    """Run a job file, as ``flstream simulate`` does.

    Args:
        job: Path of the job file, or of the folder with its ``job.conf``.
        set: Values of keys by their dotted names, in place of the file's.
        run_dir: Folder of the run: new, or with ``resume`` that of the run; None for
            ``runs/<job>-<time>``, or the newest of these.
        resume: Whether to go on with a run that was cut off.
        quiet: Whether to print no progress and no result.

    Returns:
        The run, once it is finished.

    Raises:
        UsageError: The folder cannot be used, or this is a process of a run itself.
        JobError: The job has mistakes; the message names all of them.
        RunFailedError: The run failed.
        KeyboardInterrupt: It was stopped by Ctrl-C; what it had completed is kept.
    """
    folder = None if run_dir is None else Path(run_dir)
    opened = RunDirectory.reopen if resume else RunDirectory.create
    return _run(
        lambda: load_job(job, (), set),
        lambda job: opened(job.name, folder),
        resume=resume,
        quiet=quiet,
    )


def refuse_within_run() -> None:
    """Raise a UsageError in a process of a run, or in a thread that stands for one."""
    if this_place() is not None or OF_A_RUN in os.environ:
        raise UsageError(
            "a process of a run would start a run itself, since it imports the program; "
            'put what runs the job under: if __name__ == "__main__":'
        )


def _run(
    resolve: Callable[[], Job],
    directory_of: Callable[[Job], RunDirectory],
    *,
    quiet: bool,
    resume: bool = False,
    line: CommandLine | None = None,
) -> RunResult:
    """Run a job in its directory, unless this is a process of a run.

    The program of a command line sees how a run has ended by its status, as NVFlare's do.
    """
    is_within = this_place() is not None  # its run has the lock
    with threading.Lock() if is_within else _one_run:
        # Another thread's run sets the variable while its processes start, so it is read in here.
        refuse_within_run()
        job = resolve()
        directory, console = directory_of(job), make_console()
        console.quiet = quiet
        from_round = None if line is None else line.from_round
        summary = run_and_show(job, directory, console, resume=resume, from_round=from_round)
    if line is not None:
        line.summaries.append(summary)
    if summary.status == "stopped":
        raise KeyboardInterrupt
    run = RunResult(directory.path)
    if summary.status == "failed" and line is None:
        raise RunFailedError(run)
    return run


def _gpu_groups(text: str) -> list[str]:
    """Return the groups of ``[0,1],[2]``, or each of ``0,1``; others to be refused."""
    if "[" not in text:
        return text.split(",")
    is_listed = re.fullmatch(r"\s*\[[^][]+\](\s*,\s*\[[^][]+\])*\s*", text)
    return re.findall(r"\[([^]]*)\]", text) if is_listed else [text]
