"""The ranks of a site: they are let in, hear of rank 0's tasks, and are seen to their end."""

from __future__ import annotations

import hmac
import os
import select
import socket
from contextlib import suppress

import msgspec
import psutil

from flstream.client.rank_messages import (
    AskedAgain,
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
    ToOthers,
)
from flstream.client.worker_info import WorkerInfo
from flstream.engines.engine import WorkerSockets
from flstream.errors import (
    ChannelClosedError,
    ProtocolError,
    SimulationError,
    StreamingError,
)
from flstream.simulation.command import Command
from flstream.transport.channel import Deadline
from flstream.transport.messages import PATIENCE, MessageChannel
from flstream.transport.sockets import SocketChannel

# Seconds that the processes may take to end once the server has seen the end of the script, and
# once they were killed.
_END_SECONDS = 5.0


class SiteLostError(SimulationError):
    """A site whose command cannot go on; the message says why.

    Attributes:
        has_raised: Whether the command would come to the same if it were started again.
        exit_code: Exit code of the command, or minus the signal that killed it, if that is why.
    """

    def __init__(
        self, reason: str, *, has_raised: bool = False, exit_code: int | None = None
    ) -> None:
        super().__init__(reason)
        self.has_raised = has_raised
        self.exit_code = exit_code


class _Connection:
    """A connection of a process of the command.

    Args:
        sock: The socket.

    Attributes:
        rank: Which of the ranks it is; None before it was let in.
        channel: Channel for messages to and from it.
        process: The process; None before it was let in.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.rank: int | None = None
        self.socket = sock
        self.channel: MessageChannel[FromRank] = MessageChannel(
            SocketChannel(sock, "a process of train.command"),
            "a process of train.command",
            FromRank,
        )
        self.process: psutil.Process | None = None


class RankServer:
    """Serves the ranks of a site's command until all is over.

    Rank 0 gets the sockets to the server, and exchanges models with it. What it says of its tasks
    is passed on to the others. The socket for control messages stays open here, too: to see the end
    of the server, and to report what rank 0 cannot. A rank that dies fails the site.

    Args:
        info: Facts about the run and the worker.
        threads: Number of torch's threads in each rank.
        end: The worker's ends of the sockets to the server.
        listener: Socket that ranks connect to, which does not block.
        token: What shows that a process is of the command.
        command: The command.

    Attributes:
        has_begun: Whether rank 0 has had a task.
    """

    def __init__(
        self,
        info: WorkerInfo,
        threads: int,
        end: WorkerSockets,
        listener: socket.socket,
        token: str,
        command: Command,
    ) -> None:
        own_args = {name: args for name, args in info.site_args.items() if name == info.site}
        self.has_begun = False
        self._info = msgspec.structs.replace(info, site_args=own_args)
        self._threads = threads
        self._end = end
        self._listener = listener
        self._token = token
        self._command = command
        self._connections: list[_Connection] = []
        self._ranks: dict[int, _Connection] = {}
        self._processes: list[psutil.Process] = []
        self._ended: set[int] = set()  # ranks whose script has ended
        self._gone: set[int] = set()  # ranks whose process has
        # When and why ranks have failed.
        self._failures: list[tuple[float, str]] = []
        # What a rank that connects late has to know: the last task, and what came after it.
        self._announced: list[ToOthers] = []
        self._is_over = self._is_settled = False
        self._poll = select.poll()

    def serve(self) -> None:
        """Serve the ranks until the command has ended, or the server has.

        Raises:
            SiteLostError: The site cannot go on.
        """
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._command.ended, select.POLLIN)
        self._poll.register(self._end.control, select.POLLRDHUP)
        deadline = Deadline(None)
        while ready := {fd for fd, _ in deadline.wait(self._poll)}:
            if self._end.control.fileno() in ready:
                self._poll.unregister(self._end.control)
                if 0 not in self._ended:
                    return
                deadline = Deadline(_END_SECONDS)
            has_ended = self._command.ended.is_set()
            try:
                self._accept()
                lost = [each for each in list(self._connections) if not self._is_open(each)]
                # What each rank has sent comes before what the end of one means.
                for each in lost:
                    self._lose(each)
                self._settle(has_ended)
            except StreamingError as error:
                raise SiteLostError(str(error)) from error
            if has_ended and self._is_done():
                return
            if 0 in self._gone and deadline.left is None:
                if self._failures:
                    return
                # The site is done, and its other processes are about to be.
                deadline = Deadline(_END_SECONDS)

    def kill(self) -> None:
        """Kill the command and all of its processes."""
        self._command.close()
        for each in self._processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(self._processes, timeout=_END_SECONDS)
        for connection in self._connections:
            connection.channel.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                self._connections.append(_Connection(sock))
                self._poll.register(sock, select.POLLIN)

    def _is_open(self, connection: _Connection) -> bool:
        """Take what a process has sent; return False if it has closed its connection."""
        try:
            while connection.channel.has_input():
                self._take(connection, connection.channel.receive(PATIENCE))
        except StreamingError as error:
            # Of what was not let in nothing is expected; nor is any harm done by it.
            if connection.rank is not None and not isinstance(error, ChannelClosedError):
                raise
            self._close(connection)
            return False
        return True

    def _close(self, connection: _Connection) -> None:
        self._poll.unregister(connection.socket)
        connection.channel.close()
        self._connections.remove(connection)

    def _take(self, connection: _Connection, message: FromRank) -> None:
        match message:
            case RankHello():
                self._admit(connection, message)
            case _ if connection.rank is None:
                raise ProtocolError("a process of train.command has to say first which rank it is")
            case ScriptEnded(failure, time):
                self._ended.add(connection.rank)
                if failure is not None:
                    rank = f"rank {connection.rank}: " if connection.rank else ""
                    self._failures.append((time, rank + failure))
            case TaskBegun() | AskedAgain() | StateReady() | RunOver():
                self._announce(message)

    def _admit(self, connection: _Connection, hello: RankHello) -> None:
        """Let a process in as one of the ranks."""
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise ProtocolError("it is not a process of train.command")
        if hello.rank in self._ranks:
            reason = (
                f"two processes of train.command are rank {hello.rank}; use a launcher that gives "
                "each its number, as torchrun does in RANK"
            )
            connection.channel.send(RankRefused(reason))
            raise SiteLostError(reason, has_raised=True)
        self._ranks[hello.rank] = connection
        connection.rank = hello.rank
        with suppress(psutil.NoSuchProcess):  # its connection is closed, too
            self._processes.append(psutil.Process(hello.pid))
        pids = [os.getpid(), self._command.pid, *(each.pid for each in self._processes)]
        others = [each for each in pids if each != hello.pid]
        connection.channel.send(RankWelcome(self._info, self._threads, others))
        if hello.rank == 0:
            try:
                socket.send_fds(connection.socket, [b"\0"], [each.fileno() for each in self._end])
            except OSError as error:
                raise ChannelClosedError("rank 0 of train.command has died") from error
            # They are rank 0's alone now: its death closes them.
            self._end.down.close()
            self._end.up.close()
            self._end.peers.close()
            return
        if self._announced:
            connection.channel.send(*self._announced)
        if 0 in self._ranks:
            self._send(0, RankJoined(hello.pid))

    def _announce(self, message: ToOthers) -> None:
        """Pass on to the other ranks what rank 0 says."""
        if isinstance(message, TaskBegun):
            self.has_begun = True
            self._announced.clear()
        self._is_over = self._is_over or isinstance(message, RunOver)
        self._announced.append(message)
        for rank in self._ranks:
            if rank != 0:
                self._send(rank, message)

    def _send(self, rank: int, message: ToOthers | RankJoined | SiteVerdict) -> None:
        if rank not in self._gone:
            with suppress(ChannelClosedError):  # which is seen in its turn
                self._ranks[rank].channel.send(message)

    def _lose(self, connection: _Connection) -> None:
        """Note that a process has closed its connection."""
        rank = connection.rank
        if rank is None:
            return
        self._gone.add(rank)
        if rank not in self._ended and not self._is_over and not self._is_settled:
            # Before all times: no rank is killed because another one raises later.
            reason = f"rank {rank} of train.command has died"
            self._failures.append((0.0, reason))
            if 0 not in self._ended:
                raise SiteLostError(reason)

    def _settle(self, has_ended: bool) -> None:
        """Decide why the site has failed, once a script has ended."""
        failure = min(self._failures)[1] if self._failures else None
        if 0 not in self._ended:
            if failure is not None and not self._is_over:
                raise SiteLostError(failure, has_raised=True)
            return
        others = self._ranks.keys() - {0} - self._ended - self._gone
        # After the last task the others may still have something to do, which is waited for.
        if not self._is_settled and not (self._is_over and others and not has_ended):
            self._is_settled = True
            if not self._is_over:
                self._announce(RunOver())
            self._send(0, SiteVerdict(failure))

    def _is_done(self) -> bool:
        """Return whether all is over, now that the command has ended.

        Raises:
            SiteLostError: It has ended too early.
        """
        if 0 not in self._ranks:
            raise SiteLostError(
                f"train.command has ended before it started the script: {self._command.outcome()}",
                has_raised=True,
                exit_code=self._command.exit_code,
            )
        if 0 in self._gone:
            return True
        if not self._is_over and not self._is_settled:
            raise SiteLostError(
                f"train.command has ended before its script: {self._command.outcome()}",
                exit_code=self._command.exit_code,
            )
        # The rest is up to rank 0, which this launcher does not wait for.
        with suppress(KeyError):
            self._poll.unregister(self._command.ended)
        return False
