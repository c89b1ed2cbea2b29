"""Main part of the worker's process of a site whose script is started by a command."""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import suppress

from flstream.client.code import ScriptCode
from flstream.client.messages import Failed, ToWorker
from flstream.client.rank_link import SOCKET, TOKEN
from flstream.client.site_folder import enter_work_folder
from flstream.client.worker_info import WorkerInfo
from flstream.engines.engine import WorkerSockets
from flstream.errors import FlstreamError, SimulationError
from flstream.simulation.command import STUB, Command, CommandFolder
from flstream.simulation.rank_server import RankServer, SiteLostError
from flstream.telemetry.events import SERVER
from flstream.transport.messages import MessageChannel
from flstream.transport.sockets import SocketChannel


def run_command(info: WorkerInfo, script: ScriptCode, threads: int, end: WorkerSockets) -> None:
    """Run a site's command, until it has ended or the server has.

    Args:
        info: Facts about the run and the worker.
        script: The script and the command that starts it.
        threads: Number of torch's threads in each of its processes.
        end: The worker's ends of the sockets to the server.
    """
    assert info.site is not None  # a job file in which sites share processes is refused
    assert script.command is not None
    with suppress(OSError):  # its tasks fail for the same reason
        enter_work_folder(info.sites_folder, info.site)
    words = script.words(info.site_args.get(info.site, {}))
    words = [*script.command, str(STUB), str(script.path), *words]
    token = secrets.token_hex()
    with CommandFolder() as folder, socket.socket(socket.AF_UNIX) as listener:
        # The path of a socket has 107 characters at most; this one is shorter than that of the fork
        # server's, which is there.
        path = str(folder.path / "s")
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        variables = {SOCKET: path, TOKEN: token, "TMPDIR": str(folder.temporary)}
        try:
            command = Command(words, variables)
        except SimulationError as error:
            report_failure(end, str(error))
            return
        server = RankServer(info, threads, end, listener, token, command)
        try:
            server.serve()
        except SiteLostError as error:
            server.kill()
            # Before its first task, a worker that has died failed nobody: it is started again.
            if error.has_raised or server.has_begun:
                report_failure(end, str(error), error.exit_code)
            print(f"flstream: {error}", file=sys.stderr)
        finally:
            server.kill()


def report_failure(end: WorkerSockets, reason: str, exit_code: int | None = None) -> None:
    """Report to the server that a worker cannot go on; nothing else may use the socket any more.

    Args:
        end: The worker's ends of the sockets to the server.
        reason: Clause that says why.
        exit_code: Exit code of the site's command, or minus the signal that killed it.
    """
    control: MessageChannel[ToWorker] = MessageChannel(
        SocketChannel(end.control, SERVER), SERVER, ToWorker
    )
    with suppress(FlstreamError):  # a server that is gone does not need it
        control.send(Failed("", 0, reason, exit_code))
