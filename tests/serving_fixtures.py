"""Learners and scripts written for a test, and a worker that runs them."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_support import a_job
from run_fixtures import shared_host_for
from serving import Server, Serving, worker_info, write

from flstream.engines.engine import worker_socket_pairs
from flstream.engines.processes import ProcessHost
from flstream.runs.run_directory import RunDirectory
from flstream.worker.run_learner import serve_learner
from flstream.worker.run_script import serve_own_site, serve_sites

Serve = Callable[..., Serving]
Start = Callable[..., Server]

WORKER_MAIN = "flstream.simulation.worker_process:worker_main"


@pytest.fixture(autouse=True)
def _as_if_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the state of this process that training code changes."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setattr("flstream.client.session._session", None)
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name in ("client", "helper"):
            del sys.modules[name]
    gc.unfreeze()


@pytest.fixture
def learner(tmp_path: Path) -> Serve:
    """Serve with the class ``Mine`` of a text."""

    def serve(text: str, args: Any = None, **info: Any) -> Serving:
        code = {"learner": f"{write(tmp_path, text)}:Mine", "args": args or {}}
        return Serving(worker_info(tmp_path / "sites", **code, **info), serve_learner)

    return serve


@pytest.fixture
def script(tmp_path: Path) -> Serve:
    """Serve with a script; with ``site``, as that site's own process."""

    def serve(text: str, *args: str, **info: Any) -> Serving:
        code = {"script": str(write(tmp_path, text)), "args": shlex.join(args)}
        known = worker_info(tmp_path / "sites", **code, **info)
        return Serving(known, serve_sites if known.site is None else serve_own_site)

    return serve


@pytest.fixture(scope="module")
def host(fork_server: None) -> Iterator[ProcessHost]:
    with shared_host_for(a_job()) as host:
        yield host


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create("test", tmp_path / "run")


@pytest.fixture
def start_worker(host: ProcessHost, run: RunDirectory) -> Iterator[Start]:
    """Start a worker's process, with a section ``train``; at the end it is gone."""
    servers, processes = [], []

    def start(site: str | None = None, **train: Any) -> Server:
        ours, theirs = worker_socket_pairs()
        info = worker_info(run.sites, site, **train)
        process = host.start("worker", WORKER_MAIN, info, run, theirs)
        theirs.close()
        servers.append(Server(ours))
        processes.append(process)
        return servers[-1]

    yield start
    for server in servers:
        server.close()
    for process in processes:  # once its server is gone, a worker ends by itself
        assert process.exit_code(20.0) is not None
