"""Main function of a worker's process, with the training code of its sites."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Literal

from flstream.engines.engine import WorkerSockets
from flstream.errors import FlstreamError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.child import (
    SiteLogs,
    abandon_in_children,
    end_with_peer,
    ignore_interrupts,
    redirect_output,
    refuse_breakpoints,
    this_place,
)
from flstream.simulation.command import report, run_command
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import RUN_LIMITS, stream_settings
from flstream.telemetry.events import EVALUATOR, SERVER
from flstream.telemetry.memory import own_peak_rss
from flstream.text import MOST_OF_AN_ERROR, error_text, shortened
from flstream.transport.channel import Channel
from flstream.transport.link import LinkRelay
from flstream.transport.messages import MessageChannel
from flstream.transport.tcp import StartToken, dial
from flstream.worker.messages import Failed, Stop, ToWorker
from flstream.worker.peers import Peers
from flstream.worker.run_learner import serve_learner
from flstream.worker.run_script import serve_own_site, serve_sites
from flstream.worker.user_code import prepare_imports
from flstream.worker.worker import Worker
from flstream.worker.worker_info import WorkerInfo


def local_worker(
    job: Job, run: RunDirectory, name: str, gpus: str | None, end: WorkerSockets
) -> None:
    """Run a worker with the GPUs of CUDA_VISIBLE_DEVICES, or as the job says.

    The evaluator's code is told of all sites, too.
    """
    own = job.of_evaluator() if name == EVALUATOR else job
    clients = own.clients
    if gpus is None and clients.gpus:
        gpus = clients.gpus[clients.worker_names.index(name) % len(clients.gpus)]
    info = WorkerInfo(
        name=name,
        job=own,
        clients=job.clients.count,
        sites_folder=str(run.sites),
        streaming=stream_settings(own, own.train.exchange_format),
        site=None if clients.share_workers else name,
        gpus=gpus,
    )
    worker_main(info, run, end)


def node_worker(
    job: Job,
    run: RunDirectory,
    name: str,
    gpus: str | None,
    address: str,
    keys: Mapping[str, bytes],
) -> None:
    """Run a worker on a node, over connections to the driver, with a key for each.

    The driver passes them on to the server. The job has paths of this machine.
    """
    redirect_output(run.log(name))  # where it is told if the address cannot be reached
    ends = {
        role: dial(address, StartToken(key), SERVER, role).detach() for role, key in keys.items()
    }
    local_worker(job, run, name, gpus, WorkerSockets(**ends))


def worker_main(info: WorkerInfo, run: RunDirectory, end: WorkerSockets) -> None:
    """Run tasks until the server ends the run."""
    ignore_interrupts()
    train = info.job.train
    try:
        own = run.log(info.name) if info.site is None else run.site_log(info.site)
        logs = SiteLogs(own, run.site_log)
        prepare_imports(info.job)
        refuse_breakpoints(info.site or "SITE", info.job)
        if info.gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = info.gpus  # read with the first use of CUDA
        if train.command is not None:
            run_command(info, end)
            return
        import torch

        torch.set_num_threads(info.job.clients.threads)
        end_with_peer(end.control)
        if this_place() is None:
            have_fork_as_default()
        with serving(info, end, logs.enter) as worker:
            if train.learner is not None:
                serve_learner(worker)
            elif info.site is not None:
                serve_own_site(worker)
            else:
                serve_sites(worker)
            worker.send(Stop(own_peak_rss()))
    except FlstreamError as error:
        print(f"flstream: {error}", file=sys.stderr)
    except OSError as error:
        # Such as a full disk, which the log may be on: the server is all that can be told.
        reason = f"its process cannot go on: {error_text(error)}; put that right"
        report(end, Failed("", 0, reason))
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        reason = f"its process met a defect, {shortened(what, MOST_OF_AN_ERROR)}"
        report(end, Failed("", 0, reason))
        raise


@contextmanager
def serving(
    info: WorkerInfo, end: WorkerSockets, enter: Callable[[str | None], None] = lambda site: None
) -> Iterator[Worker]:
    """Connect a worker to the server, and yield the worker.

    ``enter`` is called with each site whose part of a task begins, and with None at its end.
    """
    # A child that the training code forks would keep the sockets open after this process has died.
    abandon_in_children(end.abandon)
    control: MessageChannel[ToWorker] = MessageChannel(end.control, SERVER, ToWorker)
    relay = None
    is_direct = end.are_local and info.streaming.direct

    def channel(sock: socket.socket, way: Literal["up", "down"]) -> Channel:
        if relay is not None:
            return relay.channel(sock, SERVER, way)
        return Channel(sock, SERVER, direct=is_direct)

    def entered(site: str | None) -> None:
        if relay is not None and site is not None:
            relay.use(site)  # its own link
        enter(site)

    with ExitStack() as stack:
        sites = info.job.clients.site_names if info.site is None else [info.site]
        if links := info.job.links(sites):
            relay = stack.enter_context(closing(LinkRelay(links, info.job.seed, info.site)))
            abandon_in_children(relay.abandon)
        service = stack.enter_context(DownloadService(limits=RUN_LIMITS))
        peers = stack.enter_context(closing(Peers(info, end.peers, service, relay)))
        service.attach(channel(end.up, "up"), receiver=SERVER)
        down = stack.enter_context(Receiver(channel(end.down, "down"), SERVER, limits=RUN_LIMITS))
        yield Worker(info, control, down, service, peers, entered)


def have_fork_as_default() -> None:
    """Make fork the start method, which training code may change.

    So that starts its processes as it does elsewhere on Linux: those of the launcher's fork server
    would import everything anew, and the script itself.
    """
    multiprocessing.set_start_method(None, force=True)
    if multiprocessing.get_all_start_methods()[0] != "fork":  # from Python 3.14 on
        multiprocessing.set_start_method("fork", force=True)
