"""The nodes of a Ray cluster, which join a run like any others: Ray has each run the command."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from flstream.errors import AbortedError, SimulationError
from flstream.transport.authentication import StartToken
from flstream.transport.channel import AbortSignal, Deadline, wait_readable

# Seconds for the driver to connect to the cluster, or to start one.
_CONNECT_SECONDS = 60.0
# Seconds for the head to answer a connection.
_REACH_SECONDS = 10.0
# Seconds for the driver to end.
_END_SECONDS = 5.0


class RayCluster:
    """A Ray cluster that a driver process is connected to. Use it as a context manager.

    Args:
        address: Its head, ``HOST:PORT``; None is the one of this machine, or a new one.
        cpus: CPUs that a worker takes.
        gpus: GPUs that a worker takes; none are asked for with 0.
        log: File for what Ray prints.
        stop: Signal to wait no longer.

    Attributes:
        host: Address of this machine in the cluster.
        nodes: How many nodes have room for a worker.

    Raises:
        SimulationError: There is no such cluster, or it has no room.
        AbortedError: The signal was set.
    """

    def __init__(
        self, address: str | None, cpus: float, gpus: int, log: Path, stop: AbortSignal
    ) -> None:
        if address is not None:
            _expect_listener(address)
        with log.open("ab") as file:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "flstream.engines.ray_driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # a Ctrl-C is for the launcher
                text=True,
            )
        try:
            self._send(address=address, cpus=cpus, gpus=gpus)
            answer = self._receive(stop)
            if "error" in answer:
                raise SimulationError(
                    f"the Ray cluster {address or 'of this machine'} cannot be used: "
                    f"{answer['error']}; its output is in {log}"
                )
            self.host, self.nodes = str(answer["host"]), int(answer["nodes"])
            if not self.nodes:
                also = f" and {gpus} GPUs (engine.gpus)" if gpus else ""
                raise SimulationError(
                    f"no node of the Ray cluster has {cpus:g} CPUs (engine.cpus){also} for a worker"
                )
        except BaseException:
            self.close()
            raise

    def join(self, address: str, key: StartToken) -> None:
        """Have every node join a run, also those that come later.

        Args:
            address: Where the run has nodes join, ``HOST:PORT``.
            key: Its key, which travels in the clear within the cluster.
        """
        self._send(address=address, key=str(key))

    def close(self) -> None:
        """End the driver, and with it its actors."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        with suppress(BrokenPipeError):  # what could not be sent is sent once more
            self._driver.stdin.close()
        try:
            self._driver.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
        self._driver.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, **message: object) -> None:
        assert self._driver.stdin is not None
        try:
            self._driver.stdin.write(json.dumps(message) + "\n")
            self._driver.stdin.flush()
        except BrokenPipeError as error:
            raise SimulationError("the process of the Ray driver has ended") from error

    def _receive(self, stop: AbortSignal) -> Any:
        assert self._driver.stdout is not None
        fd = self._driver.stdout.fileno()
        try:
            if not wait_readable(fd, Deadline(_CONNECT_SECONDS), stop, "the Ray driver"):
                return {"error": f"it did not answer within {_CONNECT_SECONDS:g} s"}
        except AbortedError as error:
            raise AbortedError("the run was stopped") from error
        line = self._driver.stdout.readline()
        return json.loads(line) if line else {"error": "the process of the driver has ended"}


def _expect_listener(address: str) -> None:
    """Refuse the address of a cluster at which nobody listens, which Ray tries for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"the Ray cluster {address} cannot be reached: {error}; give the HOST:PORT that "
            "ray start --head printed"
        ) from error
