"""The driver of a Ray cluster: a process of its own, since the loss of the head ends a driver.

It speaks to the launcher in lines of JSON, on its standard streams: it is sent where the cluster
is, answers what nodes it has, is sent where they join, and has an actor on each of them run
``flstream join``, also on those that come later. The end of its input is its own. Ray places, and
moves no bytes.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from typing import Any

# Seconds between two looks at the nodes of the cluster, which tells nobody of new ones.
_LOOK_SECONDS = 2.0
# Seconds after the end of a node's agent until it has another one.
_AGAIN_SECONDS = 10.0


class Agent:
    """Actor of a node: it runs the node's agent, which ends with the run."""

    def join(self, address: str, key: str, room: int) -> int:
        """Run the agent, and return its exit status.

        Args:
            address: Where the run has nodes join, ``HOST:PORT``.
            key: Text of the run's key.
            room: How many workers the node has room for.
        """
        # In memory alone: an actor is killed at the end, and would leave a file behind.
        fd = os.memfd_create("key")
        os.fchmod(fd, 0o600)
        os.write(fd, key.encode())
        where = [address, "--key-file", f"/proc/self/fd/{fd}", "--cpus", str(room), "--quiet"]
        command = [sys.executable, "-m", "flstream", "join", *where]
        return subprocess.call(command, pass_fds=[fd])


def main() -> None:
    """Be the driver."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever Ray prints is for the log
    asked = json.loads(sys.stdin.readline())
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray

        ray.init(asked["address"], log_to_driver=False, configure_logging=False)
    except Exception as error:  # of whatever kind: the launcher needs a sentence
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        return
    here = ray.util.get_node_ip_address()
    each = asked["cpus"], asked["gpus"]
    nodes = sum(_room_of(node, *each) > 0 for node in ray.nodes())
    answers.write(json.dumps({"host": here, "nodes": nodes}) + "\n")
    if line := sys.stdin.readline():
        _join_all(*each, **json.loads(line))
    ray.shutdown()


def _join_all(cpus: float, gpus: int, address: str, key: str) -> None:
    """Have the nodes of the cluster join, until the input ends."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actors: dict[str, Any] = {}
    runs: dict[Any, str] = {}
    not_before: dict[str, float] = {}
    while True:
        # An agent that has ended has lost the run, or the run it; its node may join again.
        for ended in ray.wait(list(runs), num_returns=len(runs), timeout=0)[0] if runs else []:
            name = runs.pop(ended)
            ray.kill(actors.pop(name))
            not_before[name] = time.monotonic() + _AGAIN_SECONDS
        for node in ray.nodes():
            room, name = _room_of(node, cpus, gpus), node["NodeID"]
            is_due = time.monotonic() >= not_before.get(name, 0.0)
            if room and is_due and name not in actors:
                actor = ray.remote(max_restarts=0)(Agent)
                place = NodeAffinitySchedulingStrategy(name, soft=False)
                # Ray lets the actor see these GPUs alone, and its agent deals them to workers.
                actors[name] = actor.options(
                    num_cpus=room * cpus, num_gpus=room * gpus, scheduling_strategy=place
                ).remote()
                runs[actors[name].join.remote(address, key, room)] = name
        if select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
            break
    for each in actors.values():
        ray.kill(each)


def _room_of(node: dict[str, Any], cpus: float, gpus: int) -> int:
    """Return how many workers a node has room for; 0 if it is gone."""
    if not node["Alive"]:
        return 0
    room = int(node["Resources"].get("CPU", 0.0) // cpus)
    return min(room, int(node["Resources"].get("GPU", 0.0) // gpus)) if gpus else room


if __name__ == "__main__":
    main()
