"""The driver of a Ray cluster: a process of its own, since the loss of the head ends a driver.

The server starts it, and calls its methods and those of the nodes' actors by a pipe. Ray moves no
model.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from flstream.errors import FlstreamError
from flstream.text import quotable

# Seconds for actors to end, and to leave the cluster in order after that.
_KILL_SECONDS, _END_SECONDS = 1.0, 4.0
# Calls that an actor serves at the same time.
_CALLS = 16
# Length of the longest reason.
_MOST_WORDS = 400


class RayCall(NamedTuple):
    """Call of a method of the driver, or of the actor of a node (its ID, else empty)."""

    number: int
    node: str
    method: str
    arguments: tuple[Any, ...]
    seconds: float


class Answer(NamedTuple):
    """Result of a call; ``error`` says why there is none."""

    number: int
    value: Any = None
    error: str | None = None


class FoundNode(NamedTuple):
    """A living node: its ID in Ray, its name (by default its address), and its resources."""

    id: str
    name: str
    cpus: float
    gpus: float


class RayDriver:
    """The driver's methods, which the server calls."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}

    def connect(self, address: str | None, runtime_env: dict[str, Any]) -> str:
        """Connect to a cluster, or start one; return the address of this machine in it."""
        import ray

        ray.init(address, runtime_env=runtime_env, log_to_driver=False, configure_logging=False)
        return str(ray.util.get_node_ip_address())

    def nodes(self) -> list[FoundNode]:
        """Return the nodes that live."""
        import ray

        return [
            FoundNode(node["NodeID"], node["NodeName"], has.get("CPU", 0.0), has.get("GPU", 0.0))
            for node in ray.nodes()
            if node["Alive"] and (has := node["Resources"])
        ]

    def place(self, node: str, cpus: float, gpus: int) -> None:
        """Start an actor on a node, with what all workers there take."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from flstream.engines.ray_node import NodeHost

        # Ray lets the actor see these GPUs alone, which deals them to workers.
        options = ray.remote(NodeHost).options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_concurrency=_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        self._actors[node] = options.remote()

    def drop(self, *nodes: str) -> None:
        """Kill the actors of nodes."""
        import ray

        actors = [actor for node in nodes if (actor := self._actors.pop(node, None))]
        # By themselves, as the head may be gone; and by Ray, as they may hang.
        ends = [actor.kill.remote(None) for actor in actors]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=_KILL_SECONDS)
        for actor in actors:
            ray.kill(actor)

    async def serve(self, server: Connection) -> None:
        """Serve the server's calls until it closes its end; then end this process."""
        tasks = set()
        with suppress(EOFError, ConnectionError):
            while True:
                call = await asyncio.to_thread(server.recv)
                tasks.add(task := asyncio.create_task(self._answer(server, call)))
                task.add_done_callback(tasks.discard)
        with suppress(TimeoutError):  # a head that is gone would be waited for
            await asyncio.wait_for(asyncio.to_thread(self._leave), _END_SECONDS)
        os._exit(0)

    async def _answer(self, server: Connection, call: RayCall) -> None:
        try:
            if call.node:
                result = getattr(self._actors[call.node], call.method).remote(*call.arguments)
            else:
                result = asyncio.to_thread(getattr(self, call.method), *call.arguments)
            answer = Answer(call.number, await asyncio.wait_for(result, call.seconds))
        except TimeoutError:
            answer = Answer(call.number, error=f"it did not answer within {call.seconds:g} s")
        except Exception as error:  # of Ray, or of the actor: the server needs a sentence
            cause = getattr(error, "cause", None) or error
            kind = "" if isinstance(cause, FlstreamError) else f"{type(cause).__name__}: "
            words = quotable(kind + " ".join(str(cause).split()), _MOST_WORDS)
            answer = Answer(call.number, error=words)
        with suppress(ConnectionError):  # the server is gone
            server.send(answer)

    def _leave(self) -> None:
        import ray

        self.drop(*self._actors)
        ray.shutdown()


def main() -> None:
    """Serve the server whose end of a pipe has the number that is the argument."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The server says what stays behind, and .rayignore does.
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    asyncio.run(RayDriver().serve(Connection(int(sys.argv[1]))))


if __name__ == "__main__":
    # Answers are pickled, so that their class has to be of a module that the server has, too.
    from flstream.engines import ray_driver

    ray_driver.main()
