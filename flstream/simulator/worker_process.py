"""A worker's process: it runs the training code of one site, or of one site after another."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from flstream.aggregation.rules import Rule
from flstream.client.code import LearnerClass, TrainCode
from flstream.client.messages import Goodbye, ToWorker
from flstream.client.run_learner import serve_learner
from flstream.client.run_script import serve_own_site, serve_sites
from flstream.client.worker import Selection, Worker
from flstream.client.worker_info import WorkerInfo
from flstream.errors import FlstreamError
from flstream.simulator.child import SiteLogs, end_with_peer, redirect_output
from flstream.simulator.crew.links import LinkEnd
from flstream.simulator.files.run_directory import RunDirectory
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import SERVER
from flstream.telemetry.memory import own_peak_rss
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel


def worker_main(
    info: WorkerInfo, run: RunDirectory, code: TrainCode, threads: int, end: LinkEnd
) -> None:
    """The process: do one task after another until the server says that the run is over.

    Args:
        info: what the worker knows of the run.
        run: where its log is, and its sites' folders are.
        code: what to train with.
        threads: for torch.
        end: the pipes to the server.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter = _redirect(info, run)
    _set_threads(threads)
    end_with_peer(end.control)
    # A child that the training code forks would keep the pipes open after this process has died.
    os.register_at_fork(after_in_child=end.abandon)
    control: MessageChannel[ToWorker] = MessageChannel(
        PipeChannel(end.control, SERVER), SERVER, ToWorker
    )
    with DownloadService() as service:
        service.attach(PipeChannel(end.up, SERVER), receiver=SERVER)
        down = Receiver(PipeChannel(end.down, SERVER), SERVER)
        worker = Worker(info, control, down, service, _selection(info), enter)
        try:
            _serve(worker, code)
            worker.send(Goodbye(own_peak_rss()))
        except FlstreamError as error:
            print(f"flstream: {error}", file=sys.stderr)


def _serve(worker: Worker, code: TrainCode) -> None:
    if isinstance(code, LearnerClass):
        serve_learner(worker, code)
    elif worker.info.site is not None:
        serve_own_site(worker, code)
    else:
        serve_sites(worker, code)


def _redirect(info: WorkerInfo, run: RunDirectory) -> Callable[[str | None], None]:
    """Send output to the worker's log, and return what sends it to a site's."""
    if info.site is None:
        return SiteLogs(run.log(info.name), run.site_log).enter
    redirect_output(run.site_log(info.site))
    return lambda site: None


def _selection(info: WorkerInfo) -> Selection | None:
    """Which tensors are aggregated; None if nothing is left out."""
    if info.include == [".*"] and not info.exclude:
        return None
    return Rule(include=info.include, exclude=info.exclude).selected


def _set_threads(count: int) -> None:
    import torch  # here, so that the launcher, which names worker_main, need not load it

    torch.set_num_threads(count)
