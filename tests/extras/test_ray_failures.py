"""Runs on a Ray cluster of which something dies in the third of eight rounds, each ~40 s long.

Site-1 trains for ever then, once; the sites of its node fail in this round, and no other one.
"""

import signal
import tempfile
from pathlib import Path

import pytest
from ray_cluster import HEAD, RayCluster, is_possible
from ray_jobs import Marks, finish, sites_of_rounds, summary_of, write_job
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

    def finish(self) -> tuple[int, str]:
        """Wait for the command, and for the end of all processes of the run."""
        ended = finish(self._command, 60)
        self.cluster.signal(signal.SIGCONT)  # to what hangs
        assert self.cluster.nothing_of_a_run_lives()
        return ended

    def resume(self, *options: str) -> None:
        """Resume the run, which then ends in the bits of a run in which nothing died."""
        whole = self._folder / "whole"
        for run, more in ((self.run, ("--resume", *options)), (whole, ("--engine", "local"))):
            status, text = finish(self.cluster.simulate(self._job, run, *self._options, *more), 90)
            assert status == 0, text
        assert summary_of(self.run)["failures"] == []
        assert summary_of(self.run)["model"]["digest"] == summary_of(whole)["model"]["digest"]
        assert self.cluster.nothing_of_a_run_lives()


@pytest.fixture
def failing():
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as name:
        cluster = RayCluster(Path(name))
        try:
            cluster.start()
            yield Failing(Path(name), cluster)
        finally:
            cluster.close()


# What happens, how many sites fail of it, and what the summary says of that.
OF_A_NODE = {
    "a worker is killed": (
        lambda it: it.cluster.with_pid(it.pid, it.node).kill(), 1, "SIGKILL"
    ),
    "a raylet is killed": (
        lambda it: it.cluster.signal(signal.SIGKILL, words="raylet/raylet", node=it.node),
        2,
        "node ",
    ),
    "a node hangs": (
        lambda it: it.cluster.signal(signal.SIGSTOP, node=it.node),
        2,
        "it did not answer within 10 s",
    ),
    "a link is silent": (lambda it: it.cluster.silence(it.node), 2, "node "),
}  # fmt: skip


@pytest.mark.parametrize("what", OF_A_NODE)
def test_a_round_is_the_exact_mean_of_those_whose_node_lives(failing, what):
    happen, most, words = OF_A_NODE[what]
    happen(failing)
    status, text = failing.finish()
    assert status == 0, text
    failed = sites_of_rounds(failing.run)
    assert failed.keys() == {3}
    assert "site-1" in failed[3]
    assert len(failed[3]) <= most
    left = [2.0**number for number in range(1, 5) if f"site-{number}" not in failed[3]]
    model = load_file(failing.run / "global.safetensors")["b"]
    assert model[0, 0] == pytest.approx(7 * 30 / 4 + sum(left) / len(left), rel=1e-12)
    summary = summary_of(failing.run)
    [told] = summary["warnings"] or [summary["failures"][0]["signal"]]
    assert words in told


# Who is killed, what the command says of it, and how the run resumes.
OF_ALL = {
    "the driver": (
        lambda cluster: cluster.driver().kill(),
        f"the Ray cluster {HEAD} is gone: its driver has ended; resume with --resume",
        (),
    ),
    "the head": (
        lambda cluster: cluster.signal(signal.SIGKILL, words="gcs/gcs_server"),
        f"the Ray cluster {HEAD} is gone: its head",
        ("--engine", "local"),
    ),
    "the server": (lambda cluster: cluster.server().kill(), "", ()),
}


@pytest.mark.parametrize("who", OF_ALL)
def test_a_run_that_loses_its_cluster_resumes_to_the_same_bits(failing, who):
    kill, words, options = OF_ALL[who]
    kill(failing.cluster)
    status, text = failing.finish()
    assert status == 1, text
    assert words in text
    failing.resume(*options)
