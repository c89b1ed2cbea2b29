"""A job in a few lines, run for real: inline, or with processes where a test asks for them."""

from __future__ import annotations

import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, suppress
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import psutil
import pytest

from flstream.engines.processes import OTHER_IMPORTS, PRELOAD, SOURCE, ProcessHost, variables_of
from flstream.job import Job, load_job
from flstream.report import running
from flstream.runs.resume import ResumePoint, plan_resume
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.simulation.launcher import Listener, simulate
from flstream.telemetry import memory
from flstream.telemetry.events import AnyEvent, ProcessReady
from flstream.telemetry.memory import MemorySampler

MODEL = """
import torch


def build(elements=1000):
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(elements, generator=generator),
        "b": torch.randn(3, 5, generator=generator, dtype=torch.float64),
        "steps": torch.tensor(0),
    }
"""

COMMON_IMPORTS = Path(__file__).with_name("common_imports.py")
"""File that imports what the workers of most tests do: NumPy, and torch.optim."""

LOCAL = ("engine.type=local",)
"""The engine of tests that watch or kill processes, measure memory, or need parallel workers."""

INLINE = ("engine.type=inline",)
"""The engine of all other tests, in their own process, in some hundredths of a second.

A test overrides it with the fixture ``processes``.
"""


# For bases of models; what a test starts itself, such as a browser, keeps its own. It is made once
# a base is kept there: forked processes import this file, too.
CACHE = f"{tempfile.gettempdir()}/flstream-cache-{os.getpid()}"
"""Folder in which the processes of tests keep bases of models."""


def pytest_unconfigure() -> None:
    """Remove that folder, also in processes of xdist, which end without leaving Python."""
    shutil.rmtree(CACHE, ignore_errors=True)


class Run(NamedTuple):
    """The summary of a run, and its directory."""

    summary: Summary
    directory: RunDirectory

    def finished(self) -> Run:
        """Return the run, which must have come to its end."""
        assert self.summary.status == "finished", self.summary.error
        return self


class SharedHost(ProcessHost):
    """Process host that runs share, one after another: its fork server outlives each of them.

    To start one takes longer than all else that a small job does; and they are all alike.

    Args:
        imports: Path of the file with the imports that the workers of most tests make.
    """

    def __init__(self, imports: Path = COMMON_IMPORTS, **variables: str) -> None:
        imported = ",".join(OTHER_IMPORTS)  # once for all of them
        super().__init__(
            {SOURCE: str(imports), PRELOAD: imported, "XDG_CACHE_HOME": CACHE, **variables}
        )

    def prepare(self, variables: Mapping[str, str]) -> None:
        """Keep to the variables of the first job, and to the imports of this host."""
        if not self._is_prepared:
            super().prepare({**variables, **self._variables})

    def begin(self) -> None:
        """Start the fork server in a folder that stays, unlike those of tests."""
        with chdir(Path(__file__).parent):
            super().begin()

    def close(self) -> None:
        """End the processes of a run, but for the fork server."""
        self.end_processes()

    def end(self) -> None:
        """End the fork server, too."""
        super().close()


SHARED_HOST = SharedHost()


def shared_host_for(job: Job | None = None) -> ProcessHost:
    """Return the process host that all jobs share, prepared for one."""
    if job is not None:
        SHARED_HOST.prepare(variables_of(job))
    return SHARED_HOST


def shared_host_of(stack: ExitStack, hosts: object, job: Job) -> ProcessHost:
    """Return the process host that runs of sweeps share, which stays."""
    host = shared_host_for(job)
    host.begin()
    stack.callback(SHARED_HOST.end_processes)
    return host


def share_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every job of this process the shared process host."""
    monkeypatch.setattr(ProcessHost, "of", staticmethod(shared_host_for))
    share_host_in_sweeps(monkeypatch)


def share_host_in_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every sweep of this process the shared process host, and its runs no page."""
    monkeypatch.setattr("flstream.sweep.running._host_of", shared_host_of)
    monkeypatch.setattr("flstream.sweep.running._POINT", "pageless_points:run_point")


@pytest.fixture
def _without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process draw no page, which takes longer than all else that they do."""
    monkeypatch.setattr(running, "leave_page", lambda *_, **__: None)


class Jobs(NamedTuple):
    """Makes jobs in a folder of a test's own, and runs them.

    Attributes:
        folder: Folder of the job's files and of its runs.
        host_for: Gives what a job's processes start from.
        engine: Overrides that choose the engine.
    """

    folder: Path
    host_for: Callable[[Job], ProcessHost] = shared_host_for
    engine: Sequence[str] = INLINE

    def make(self, script: str, *overrides: str, model: str = MODEL) -> Job:
        """A job of two clients and two rounds, unless overrides say otherwise."""
        (self.folder / "model.py").write_text(textwrap.dedent(model))
        (self.folder / "client.py").write_text(textwrap.dedent(script))
        (self.folder / "job.conf").write_text(
            textwrap.dedent("""
            name = test, seed = 7, rounds = 2
            clients { count = 2 }
            model { factory = "model:build" }
            train { script = client.py }
            """)
        )
        return load_job(self.folder / "job.conf", [*self.engine, *overrides])

    def run(
        self, script: str, *overrides: str, model: str = MODEL, listener: Listener | None = None
    ) -> Run:
        """Run a job to its end."""
        return self._begin(self.make(script, *overrides, model=model), listener)

    def run_files(self, files: Mapping[str, str], *overrides: str) -> Run:
        """Run a job whose folder holds these files, by name; one of them is job.conf."""
        for name, text in files.items():
            (self.folder / name).write_text(text)
        return self._begin(load_job(self.folder / "job.conf", [*self.engine, *overrides]))

    def go_on(
        self,
        run: Run | Path,
        script: str,
        *overrides: str,
        model: str = MODEL,
        listener: Listener | None = None,
        from_round: int | None = None,
    ) -> Run:
        """Go on with a run, as the command line does with ``--resume``."""
        job = self.make(script, *overrides, model=model)
        path = run if isinstance(run, Path) else run.directory.path
        directory = RunDirectory.reopen(job.name, path)
        with directory.in_use():
            point = plan_resume(job, directory, from_round)
            assert point is None or not point.is_finished
            return self._simulate(job, directory, point, listener)

    def _begin(self, job: Job, listener: Listener | None = None) -> Run:
        """Run a job in a new run directory."""
        number = len(list(self.folder.glob("run-*")))
        directory = RunDirectory.create(job.name, self.folder / f"run-{number}")
        return self._simulate(job, directory, None, listener)

    def _simulate(
        self,
        job: Job,
        directory: RunDirectory,
        point: ResumePoint | None,
        listener: Listener | None,
    ) -> Run:
        """Run a job, and see to it that none of its processes is left."""
        processes: list[psutil.Process] = []

        def listen(event: AnyEvent, sampler: MemorySampler) -> None:
            if isinstance(event, ProcessReady) and event.pid != os.getpid():
                with suppress(psutil.NoSuchProcess):
                    processes.append(psutil.Process(event.pid))
            if listener is not None:
                listener(event, sampler)

        host = None if job.engine.is_inline else self.host_for(job)
        # A fifth of the time of a run goes into samples of a memory that is not its own.
        interval = 1.0 if job.engine.is_inline else memory.INTERVAL
        with patch.object(memory, "INTERVAL", interval):
            summary = simulate(job, directory, listen, point, host)
        # The kernel may still be taking down one that was killed.
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []
        return Run(summary, directory)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[None]:
    """The fork server that runs share ends with the last of them."""
    yield
    SHARED_HOST.end()


@pytest.fixture
def processes() -> None:
    """Runs of the fixture ``jobs`` have processes in this test, whatever other tests run in."""


@pytest.fixture
def jobs(tmp_path: Path, fork_server: None, request: pytest.FixtureRequest) -> Jobs:
    """Jobs in a folder of the test's own."""
    engine = LOCAL if "processes" in request.fixturenames else INLINE
    return Jobs(tmp_path, engine=engine)


@pytest.fixture
def jobs_of_their_own(tmp_path: Path, fork_server: None) -> Jobs:
    """Jobs that share nothing with those of other tests: each has a fork server of its own."""
    return Jobs(tmp_path, ProcessHost.of, LOCAL)


@pytest.fixture(scope="session")
def jobs_in(fork_server: None) -> type[Jobs]:
    """Makes jobs in a folder that several tests share; with ``engine=LOCAL``, in processes."""
    return Jobs
