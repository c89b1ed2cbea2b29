"""Nodes of a Ray cluster that a run cannot use, and workers that cannot reach it; without Ray."""

import pytest
from journal_support import a_job
from run_fixtures import shared_host_for

from flstream.engines.ray import NONCE_FILE
from flstream.engines.ray_node import NodeHost
from flstream.errors import SimulationError, UsageError
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.machine import versions
from flstream.transport.tcp import StartToken


def describe(folder, nonce="x", **others):
    theirs = {**versions(), **others}
    return NodeHost().describe(RunDirectory(folder), nonce, theirs)


@pytest.mark.parametrize("library", ["flstream", "Python", "torch", "numpy"])
def test_a_node_with_other_versions_is_refused(tmp_path, library):
    with pytest.raises(SimulationError, match=f"it has {library} .*, and the run 0.0; install"):
        describe(tmp_path, **{library: "0.0"})


def test_a_node_that_does_not_see_the_run_directory_is_refused(tmp_path):
    with pytest.raises(UsageError, match=f"it does not see {tmp_path}/run, the run directory"):
        describe(tmp_path / "run")
    (tmp_path / NONCE_FILE).write_text("of another run")
    with pytest.raises(UsageError, match=f"it does not see {tmp_path}, the run directory"):
        describe(tmp_path)


def test_the_log_of_a_worker_says_what_it_cannot_reach(tmp_path, fork_server):
    keys = {"control": StartToken.new().key}
    job = a_job()
    arguments = job, RunDirectory(tmp_path), "site-1", None, "127.0.0.1:1", keys
    worker = "flstream.simulation.worker_process:node_worker"
    process = shared_host_for(job).start("site-1", worker, *arguments)
    assert process.exit_code(60.0) == 1
    assert "server at 127.0.0.1:1 cannot be reached" in (tmp_path / "site-1.log").read_text()
