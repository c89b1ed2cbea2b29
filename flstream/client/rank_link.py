"""A rank's connection to the worker process of its site."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from flstream.client.messages import Task
from flstream.client.rank_messages import (
    AskedAgain,
    Call,
    FromRank,
    RankHello,
    RankJoined,
    RankRefused,
    RankWelcome,
    RunOver,
    ScriptEnded,
    SiteVerdict,
    StateReady,
    TaskBegun,
    ToRank,
)
from flstream.errors import ChannelClosedError, ClientError, DeadlineError, ProtocolError
from flstream.transport.messages import PATIENCE, MessageChannel
from flstream.transport.sockets import SocketChannel

SOCKET = "FLSTREAM_RANK_SOCKET"
"""Environment variable with the path of the worker process's socket."""
TOKEN = "FLSTREAM_RANK_TOKEN"
"""Environment variable with what shows that a process is of the command."""

_WORKER = "the site's worker"
# Those between the server and a worker.
_SOCKETS = 4
# What launchers call a process's number and how many there are: torchrun, Open MPI, MPICH, Slurm.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
INHERITED = (
    *(name for pair in _VARIABLES[:3] for name in pair),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID"),
)
"""Variables that a command must not find, as they would be of a launcher of flstream itself."""


class RankPlace(NamedTuple):
    """Which of a command's processes a rank is.

    Attributes:
        rank: Its number, from 0.
        ranks: How many there are.
    """

    rank: int = 0
    ranks: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> RankPlace:
        """Return what a launcher says in the environment; one process if it says nothing."""
        for rank, ranks in _VARIABLES:
            if environment.get(rank, "").isdecimal():
                number, count = int(environment[rank]), environment.get(ranks, "")
                return cls(number, max(int(count) if count.isdecimal() else 1, number + 1))
        return cls()

    def check(self, given: str | int | None) -> None:
        """Compare with the rank that a script has given to ``init``.

        Raises:
            ClientError: It is another one.
        """
        if given is not None and str(given).strip() != str(self.rank):
            raise ClientError(
                f"init() was given rank {given}, and this process is rank {self.rank} of "
                f"{self.ranks}; give it the number that the launcher of train.command gives, as "
                "torchrun does in RANK, or leave it out"
            )


class RankLink:
    """A rank's connection to the worker process of its site. One thread at a time uses it.

    Args:
        sock: The connected socket.
        place: Which rank it is.

    Attributes:
        place: Which rank it is.
        socket: The connected socket, whose other end is closed once the worker process has ended.
    """

    def __init__(self, sock: socket.socket, place: RankPlace) -> None:
        self.place = place
        self.socket = sock
        self._channel: MessageChannel[ToRank] = MessageChannel(
            SocketChannel(sock, _WORKER), _WORKER, ToRank
        )

    @classmethod
    def connect(cls, environment: MutableMapping[str, str]) -> RankLink:
        """Connect to the worker process that the environment names, which is removed from it.

        Raises:
            ClientError: There is none.
        """
        path, token = environment.pop(SOCKET, ""), environment.pop(TOKEN, "")
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(path)
        except OSError as error:
            sock.close()
            raise ClientError(
                f"there is no site to run the script for ({error}); name the launcher as "
                "train.command in a job file and run: flstream simulate job.conf"
            ) from error
        link = cls(sock, RankPlace.of(environment))
        link.send(RankHello(token, link.place.rank, os.getpid()))
        return link

    def welcome(self) -> tuple[RankWelcome, list[socket.socket]]:
        """Wait to be let in.

        Returns:
            Facts about the run; and, for rank 0, the sockets to the server.

        Raises:
            ClientError: Another process has this rank.
            StreamingError: The worker process has ended.
        """
        match message := self.receive(PATIENCE):
            case RankWelcome():
                return message, self._sockets() if self.place.rank == 0 else []
            case RankRefused(reason):
                raise ClientError(reason)
            case _:
                raise ProtocolError(f"{_WORKER} sent {type(message).__name__}, out of turn")

    def has_input(self) -> bool:
        """Whether a message can be received without waiting."""
        return self._channel.has_input()

    def wait(self, seconds: float) -> bool:
        """Wait for something to be received; return False if there is nothing after ``seconds``."""
        return self._channel.wait(seconds)

    def receive(self, timeout: float | None = None) -> ToRank:
        """Wait for a message, for ``timeout`` seconds or without limit.

        Raises:
            StreamingError: There is none in time, or the worker process has ended.
        """
        return self._channel.receive(timeout)

    def send(self, message: FromRank) -> None:
        """Send a message.

        Raises:
            StreamingError: The worker process has ended.
        """
        self._channel.send(message)

    def ended(self, failure: str | None) -> None:
        """Report that the script has ended, and why it failed; None if it did not."""
        self.send(ScriptEnded(failure, time.monotonic()))

    def abandon(self) -> None:
        """Close the descriptor alone, in a forked child that inherited the socket object."""
        if self.socket.fileno() >= 0:
            os.close(self.socket.detach())

    def _sockets(self) -> list[socket.socket]:
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        if not poll.poll(PATIENCE * 1000):
            raise DeadlineError(f"{_WORKER} has not handed over its sockets in {PATIENCE:g} s")
        flags = socket.MSG_CMSG_CLOEXEC  # or what the script starts would keep them open
        _, descriptors, _, _ = socket.recv_fds(self.socket, 1, _SOCKETS, flags)
        if len(descriptors) != _SOCKETS:
            raise ChannelClosedError(f"{_WORKER} has ended before it handed over its sockets")
        return [socket.socket(fileno=each) for each in descriptors]


class Announcer:
    """What rank 0 has the other ranks know of its tasks.

    Args:
        link: Connection of rank 0.
        pids: Processes of the site so far, besides rank 0.
    """

    def __init__(self, link: RankLink, pids: list[int]) -> None:
        self.place = link.place
        self._link = link
        self._pids = list(pids)
        self._calls: dict[Call, int] = {}
        self._state: Path | None = None
        self._is_over = False

    def begun(self, task: Task) -> None:
        """Announce the next task."""
        self._calls, self._state = {}, None
        self._link.send(TaskBegun(msgspec.structs.replace(task, bodies={})))

    def called(self, call: Call) -> None:
        """Count a call in the current task; from the second one on it is announced."""
        self._calls[call] = self._calls.get(call, 0) + 1
        if self._calls[call] > 1:
            self._link.send(AskedAgain(call))

    def state_ready(self, path: Path) -> None:
        """Announce where the site's own files are, once a task."""
        if self._state != path:
            self._state = path
            self._link.send(StateReady(str(path)))

    def over(self) -> None:
        """Announce that there are no more tasks, once."""
        if not self._is_over:
            self._is_over = True
            self._link.send(RunOver())

    def pids(self) -> list[int]:
        """Return the pids of the site's other processes, as far as they have connected."""
        while self._link.has_input():
            message = self._link.receive(PATIENCE)
            if isinstance(message, RankJoined):
                self._pids.append(message.pid)
        return self._pids

    def settle(self, failure: str | None) -> str | None:
        """Report the end of rank 0's script, and wait until those of the others count.

        Args:
            failure: Why it failed; None if it did not.

        Returns:
            Why the first script of the site failed that did; None if none has.
        """
        with suppress(ChannelClosedError):
            self._link.ended(failure)
            while True:
                message = self._link.receive()
                if isinstance(message, SiteVerdict):
                    return message.failure
        return failure
