"""A site's process: it runs the training script, with the client API bound to the server."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import flstream.client
from flstream.client.messages import Failed, Goodbye, ToSite
from flstream.client.session import Session, SiteInfo
from flstream.errors import FlstreamError
from flstream.simulator.child import end_with_peer, redirect_output
from flstream.simulator.links import LinkEnd
from flstream.simulator.run_directory import RunDirectory
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import SERVER
from flstream.telemetry.memory import own_peak_rss
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel


def site_main(
    info: SiteInfo,
    run: RunDirectory,
    script: Path,
    arguments: Sequence[str],
    threads: int,
    end: LinkEnd,
) -> None:
    """The process: run the script until the server says that the run is over.

    Args:
        info: what the site knows of the run.
        run: where its folder and its log are.
        script: the training script.
        arguments: its command line.
        threads: for torch.
        end: the pipes to the server.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect_output(run.site_log(info.name))
    _set_threads(threads)
    end_with_peer(end.control)
    # A child that the script forks would keep the pipes open after this process has died.
    os.register_at_fork(after_in_child=end.abandon)
    control: MessageChannel[ToSite] = MessageChannel(
        PipeChannel(end.control, SERVER), SERVER, ToSite
    )
    with DownloadService() as service:
        service.attach(PipeChannel(end.up, SERVER), receiver=SERVER)
        down = Receiver(PipeChannel(end.down, SERVER), SERVER)
        session = Session(info, control, down, service)
        flstream.client._enter(session)
        pid = os.getpid()
        failure = _run(script, arguments)
        if os.getpid() != pid:
            os._exit(0 if failure is None else 1)  # a child that the script forked ends here
        try:
            if failure is not None:
                control.send(Failed(failure))
            control.send(Goodbye(own_peak_rss()))
        except FlstreamError as error:
            print(f"flstream: {error}", file=sys.stderr)


def _run(script: Path, arguments: Sequence[str]) -> str | None:
    """Run a script as the interpreter would; if it fails, say why in one sentence."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        return f"{script.name} exited with status {error.code}"
    except BaseException as error:
        traceback.print_exc()
        return _sentence(error, script)
    return None


def _sentence(error: BaseException, script: Path) -> str:
    """What was raised, and the line of the script from which it came."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(script)
    ]
    where = f"{script.name}, line {lines[-1]}" if lines else script.name
    said = f": {error}" if str(error) else ""
    return f"{where} raised {type(error).__name__}{said}"


def _set_threads(count: int) -> None:
    import torch  # here, so that the launcher, which names site_main, need not load it

    torch.set_num_threads(count)
