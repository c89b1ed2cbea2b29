"""Runs on a Ray cluster of which something dies in the third of eight rounds, each ~40 s long.

Site-1 trains for ever then, once; the sites of its node fail in this round, and no other one.
"""

import signal
import tempfile
import time
from pathlib import Path

import pytest
from ray_cluster import HEAD, RayCluster, is_possible
from ray_jobs import Marks, sites_of_rounds, summary_of, write_job
from safetensors.numpy import load_file

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not is_possible(), reason="needs unshare, nsenter and ip, for networks of its own"
    ),
]


class Failing:
    """A run on a cluster in whose third round site-1 trains for ever.

    Attributes:
        run: The run directory.
        node: Number of the node of site-1.
        pid: Pid of its worker, as the node has it.
    """

    def __init__(self, folder: Path, cluster: RayCluster) -> None:
        self.cluster = cluster
        self.run = folder / "run"
        self._job = write_job(folder / "job")
        marks = Marks(folder / "marks")
        self._options = ("--set", f"train.args.marks={marks.folder}")
        self._command = cluster.simulate(self._job, self.run, *self._options)
        network, self.pid = marks.awaited()
        self.node = cluster.node_in(network)
        self._folder = folder

    def finish(self, seconds: float = 60.0) -> tuple[int, str]:
        """Wait for the command, and for the end of all processes of the run."""
        out, _ = self._command.communicate(timeout=seconds)
        assert self.cluster.nothing_of_a_run_lives(10.0)
        return self._command.returncode, out

    def resume(self, *options: str) -> None:
        """Resume the run, which then ends in the bits of a run in which nothing died."""
        command = self.cluster.simulate(self._job, self.run, "--resume", *self._options, *options)
        out, _ = command.communicate(timeout=90)
        assert command.returncode == 0, out
        whole = self._folder / "whole"
        command = self.cluster.simulate(self._job, whole, *self._options, "--engine", "local")
        out, _ = command.communicate(timeout=90)
        assert command.returncode == 0, out
        assert summary_of(self.run)["failures"] == []
        assert summary_of(self.run)["model"]["digest"] == summary_of(whole)["model"]["digest"]
        assert self.cluster.nothing_of_a_run_lives()

    def expect_a_round_without_its_node(self, sites: range) -> None:
        """Expect so many failed sites in the third round, and the exact mean of the others."""
        failed = sites_of_rounds(self.run)
        assert failed.keys() == {3}
        assert "site-1" in failed[3]
        assert len(failed[3]) in sites
        left = [2.0**number for number in range(1, 5) if f"site-{number}" not in failed[3]]
        model = load_file(self.run / "global.safetensors")["b"]
        assert model[0, 0] == pytest.approx(7 * 30 / 4 + sum(left) / len(left), rel=1e-12)


@pytest.fixture
def failing():
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as name:
        cluster = RayCluster(Path(name))
        try:
            cluster.start()
            yield Failing(Path(name), cluster)
        finally:
            cluster.close()


def test_a_worker_is_killed(failing):
    (worker,) = failing.cluster.with_pid(failing.pid, failing.node)
    worker.kill()
    status, text = failing.finish()
    assert status == 0, text
    failing.expect_a_round_without_its_node(range(1, 2))
    (failure,) = summary_of(failing.run)["failures"]
    assert failure["signal"] == "SIGKILL"


def test_a_raylet_is_killed(failing):
    assert failing.cluster.signal(signal.SIGKILL, words="raylet/raylet", node=failing.node)
    status, text = failing.finish()
    assert status == 0, text
    failing.expect_a_round_without_its_node(range(1, 3))
    (warning,) = summary_of(failing.run)["warnings"]
    assert warning.startswith("node ")


def test_a_node_hangs_for_a_while(failing):
    began = time.monotonic()
    assert failing.cluster.signal(signal.SIGSTOP, node=failing.node)
    out, _ = failing._command.communicate(timeout=60)
    assert failing._command.returncode == 0, out
    assert time.monotonic() - began < 20
    failing.cluster.signal(signal.SIGCONT, node=failing.node)
    failing.finish()
    failing.expect_a_round_without_its_node(range(1, 3))
    (warning,) = summary_of(failing.run)["warnings"]
    assert warning.endswith("it did not answer within 10 s")


def test_the_link_of_a_node_is_silent(failing):
    began = time.monotonic()
    failing.cluster.silence(failing.node)
    status, text = failing.finish()
    assert status == 0, text
    assert time.monotonic() - began < 30
    failing.expect_a_round_without_its_node(range(1, 3))


def test_the_driver_is_killed(failing):
    failing.cluster.driver().kill()
    status, text = failing.finish()
    assert status == 1
    assert f"the Ray cluster {HEAD} is gone: its driver has ended; resume with --resume" in text
    failing.resume()


def test_the_head_is_killed(failing):
    assert failing.cluster.signal(signal.SIGKILL, words="gcs/gcs_server") == 1
    status, text = failing.finish()
    assert status == 1
    assert f"the Ray cluster {HEAD} is gone: its head" in text
    failing.resume("--engine", "local")


def test_the_server_is_killed(failing):
    failing.cluster.server().kill()
    status, text = failing.finish()
    assert status == 1, text
    failing.resume()
