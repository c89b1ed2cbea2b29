"""A Ray cluster on this machine: a head and nodes, each in a network of its own on one bridge.

All of its processes are in one process namespace, and none outlives the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

HEAD = "10.9.0.1:6399"
_NETWORKS = """
set -e
ip link set lo up
ip link add name br0 address 02:00:00:00:00:01 type bridge
ip addr add 10.9.0.1/24 dev br0
ip link set br0 up
for n in {nodes}; do
  unshare --net --mount sleep infinity & pid=$!
  until [ $(readlink /proc/$pid/ns/net) != $(readlink /proc/$$/ns/net) ]; do sleep 0.02; done
  ip link add name v$n type veth peer name eth0 netns $pid
  ip link set v$n master br0 up
  nsenter -t $pid -m mount -t tmpfs none {folder}/r  # as Ray has it on a machine of its own
  nsenter -t $pid -n ip link set lo up
  nsenter -t $pid -n ip addr add 10.9.0.$n/24 dev eth0
  nsenter -t $pid -n ip link set eth0 up
done
sleep infinity & last=$!
echo there
wait $last  # and for orphans
"""
_START = (sys.executable, "-m", "ray.scripts.scripts", "start")
_START += ("--object-store-memory=80000000", "--disable-usage-stats")


class RayCluster:
    """A cluster of a head, on which no worker has room, and nodes 2, 3, ...

    Args:
        folder: Folder for Ray's files, with a short path: its sockets' may have 107 bytes.
        nodes: How many nodes.
        start: Options of ``ray start`` of each.
        variables: Environment variables of all.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        *,
        start: Sequence[str] = (),
        variables: dict[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._start = ["--num-cpus=2", *start]
        # Ray keeps a token in the home folder, once it has made one; and it kills actors where the
        # machine has little memory left, whoever has taken it.
        own = {"RAY_USAGE_STATS_ENABLED": "0", "HOME": str(folder)}
        own["RAY_memory_monitor_refresh_ms"] = "0"
        self.env = {**os.environ, **own, **(variables or {})}
        self.numbers = range(2, 2 + nodes)
        alone = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork"]
        (folder / "r").mkdir(parents=True)
        script = _NETWORKS.format(folder=folder, nodes=" ".join(map(str, self.numbers)))
        self._holder = subprocess.Popen(
            [*alone, "--kill-child", "--mount-proc", "bash", "-c", script],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        self._first = psutil.Process(self._holder.pid).children()[0]
        holders = self._first.children()
        self._holders = {process.pid for process in (self._first, *holders)}
        self._nodes = dict(zip(self.numbers, holders, strict=False))

    def start(self) -> None:
        """Start the head and all nodes."""
        head = ("--head", "--port=6399", "--num-cpus=0", "--include-dashboard=false")
        self.run(*_START, *head, "--node-ip-address=10.9.0.1", f"--temp-dir={self._folder}/r")
        started = [
            self.popen(
                *(*_START, f"--address={HEAD}", f"--node-ip-address=10.9.0.{number}"),
                *self._start,
                node=number,
            )
            for number in self.numbers
        ]
        for starter in started:
            out, _ = starter.communicate(timeout=60)
            assert starter.returncode == 0, out

    def popen(self, *words: str, node: int | None = None) -> subprocess.Popen[str]:
        """Start a command where the head is, or on a node."""
        process = self._first if node is None else self._nodes[node]
        enter = ["nsenter", "-t", str(process.pid), "--user", "--preserve-credentials"]
        return subprocess.Popen(
            [*enter, "--net", "--mount", "--pid", f"--wdns={self._folder}", *words],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env,
        )

    def run(self, *words: str, node: int | None = None) -> str:
        """Run a command to its end, and return what it prints."""
        done = self.popen(*words, node=node)
        out, _ = done.communicate(timeout=60)
        assert done.returncode == 0, out
        return out

    def simulate(self, job: Path, run: Path, *options: str) -> subprocess.Popen[str]:
        """Start a run where the head is."""
        where = ("simulate", str(job), "--run-dir", str(run), "--quiet")
        engine = () if "--engine" in options else ("--engine", f"ray:{HEAD}")
        return self.popen(sys.executable, "-m", "flstream", *where, *engine, *options)

    def processes(self, node: int | None = None) -> list[psutil.Process]:
        """Return the processes of the cluster and of runs, or those of a node."""
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                is_there = _is_in("pid", process, self._first) and process.pid not in self._holders
                if node is not None:
                    is_there = is_there and _is_in("net", process, self._nodes[node])
                if is_there and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        return processes

    def of_runs(self) -> list[psutil.Process]:
        """Return the processes of runs: of the server's machine, and of nodes."""
        processes = []
        for process in self.processes():
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if "flstream" in words or "NodeHost" in words:
                    processes.append(process)
        return processes

    def nothing_of_a_run_lives(self, seconds: float = 10.0) -> bool:
        """Return whether all processes of runs end in time."""
        psutil.wait_procs(self.of_runs(), timeout=seconds)
        return not self.of_runs()

    def signal(self, number: signal.Signals, *, words: str = "", node: int | None = None) -> int:
        """Send a signal to all whose command line has some words, or to all; return to how many."""
        count = 0
        for process in self.processes(node):
            with suppress(psutil.Error):
                if words in " ".join(process.cmdline()):
                    process.send_signal(number)
                    count += 1
        return count

    def with_pid(self, pid: int, node: int) -> psutil.Process:
        """Return the process that a node knows under a pid."""
        [process] = [
            process
            for process in self.processes(node)
            for status in (Path(f"/proc/{process.pid}/status").read_text(),)
            if status.partition("NSpid:")[2].splitlines()[0].split()[-1] == str(pid)
        ]
        return process

    def node_in(self, network: str) -> int:
        """Return the number of the node that is in a network, by its link in ``/proc``."""
        networks = {
            number: os.readlink(f"/proc/{process.pid}/ns/net")
            for number, process in self._nodes.items()
        }
        return next(number for number, name in networks.items() if name == network)

    def driver(self) -> psutil.Process:
        """Return the driver of a run: a fork of a fork server, with Ray's library."""
        (driver,) = [
            process
            for process in self.of_runs()
            if "NodeHost" not in " ".join(process.cmdline())
            and any("_raylet" in mapped.path for mapped in process.memory_maps())
        ]
        return driver

    def server(self) -> psutil.Process:
        """Return the server of a run, which has the fork server of the driver."""
        return self.driver().parent().parent()

    def silence(self, node: int) -> None:
        """Cut a node from the network without a sign to anybody."""
        self.run("ip", "link", "set", f"v{node}", "nomaster")

    def close(self) -> None:
        """Kill all processes."""
        self._holder.kill()  # and with it the first of the namespace, and so all
        self._holder.communicate()
        psutil.wait_procs([self._first], timeout=10)


def _is_in(kind: str, process: psutil.Process, other: psutil.Process) -> bool:
    """Whether two processes are in the same namespace of a kind."""
    return os.readlink(f"/proc/{process.pid}/ns/{kind}") == os.readlink(
        f"/proc/{other.pid}/ns/{kind}"
    )


def is_possible() -> bool:
    """Whether this machine can have such networks."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    words = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork"]
    script = "ip link add name br0 type bridge"
    return not subprocess.run([*words, "sh", "-c", script], capture_output=True).returncode
