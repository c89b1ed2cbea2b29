"""Main function of a process of a site's command, which runs the training script as one rank."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from flstream.client.alias import install as install_alias
from flstream.client.code_errors import CodeFailure
from flstream.client.messages import Goodbye
from flstream.client.rank_link import Announcer, RankLink
from flstream.client.rank_messages import RankWelcome
from flstream.client.rank_session import RankSession
from flstream.client.run_script import run_script, run_session
from flstream.client.session import Session, enter
from flstream.client.worker_info import WorkerInfo
from flstream.engines.engine import WorkerSockets
from flstream.errors import FlstreamError
from flstream.job.code import make_importable
from flstream.simulation.child import end_with_peer
from flstream.simulation.worker_process import have_fork_as_default, serving, set_threads
from flstream.telemetry.memory import own_peak_rss


def rank_main(script: Path, words: Sequence[str]) -> int:
    """Run a training script as one rank of a site's command.

    Args:
        script: Path of the script.
        words: Words of its command line.

    Returns:
        The exit status: 0, or 1 if the script has failed.
    """
    _show_lines_at_once()
    try:
        link = RankLink.connect(os.environ)
        welcome, sockets = link.welcome()
        failure = _run(link, welcome, sockets, script, words)
    except FlstreamError as error:
        print(f"flstream: {error}", file=sys.stderr)
        return 1
    return 0 if failure is None else 1


def _run(
    link: RankLink,
    welcome: RankWelcome,
    sockets: Sequence[socket.socket],
    script: Path,
    words: Sequence[str],
) -> CodeFailure | None:
    """Run the script; return why it failed, or None if it did not."""
    end_with_peer(link.socket)
    os.register_at_fork(after_in_child=link.abandon)
    if welcome.info.alias is not None:
        install_alias()
    make_importable(welcome.info.job_folder)
    set_threads(welcome.threads)
    have_fork_as_default()
    sys.path.insert(0, str(script.parent))
    if sockets:
        return _run_first(link, welcome, WorkerSockets(*sockets), script, words)
    return _run_other(link, welcome.info, script, words)


def _run_first(
    link: RankLink, welcome: RankWelcome, end: WorkerSockets, script: Path, words: Sequence[str]
) -> CodeFailure | None:
    """Run the script as rank 0, which has the site's tasks."""
    announcer = Announcer(link, welcome.pids)
    with serving(welcome.info, end) as worker:
        session = Session(worker, announcer=announcer)
        enter(session)
        failure = run_session(session, script, words)
        # What another rank has failed of is most likely why this one has, too.
        reason = announcer.settle(None if failure is None else failure.reason)
        if reason is not None:
            # Its own exit status, unless another rank's failure is told in its place.
            own = failure if failure is not None and failure.reason == reason else None
            session.fail(own or CodeFailure(reason))
        worker.send(Goodbye(own_peak_rss()))
    return failure


def _run_other(
    link: RankLink, info: WorkerInfo, script: Path, words: Sequence[str]
) -> CodeFailure | None:
    """Run the script as another rank."""
    session = RankSession(link, info)
    enter(session)
    failure = run_script(script, words, info, session.site)
    link.ended(None if failure is None else failure.reason)
    return failure


def _show_lines_at_once() -> None:
    """Write each line to the site's log when it is printed, as in a worker's own process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
