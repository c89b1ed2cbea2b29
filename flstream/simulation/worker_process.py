"""Main function of a worker's process, with the training code of its sites."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Literal

from msgspec.structs import replace

from flstream.engines.engine import WorkerSockets
from flstream.errors import FlstreamError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.server.stream_settings import stream_settings
from flstream.simulation.child import (
    SiteLogs,
    abandon_in_children,
    end_with_peer,
    ignore_interrupts,
    prepare_imports,
    redirect_output,
    refuse_breakpoints,
)
from flstream.simulation.command import report, run_command
from flstream.simulation.places import this_place
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import limits_for
from flstream.telemetry.events import SERVER
from flstream.telemetry.memory import own_peak_rss
from flstream.text import MOST_OF_AN_ERROR, error_text, shortened
from flstream.transport.channel import Channel
from flstream.transport.link import LinkRelay
from flstream.transport.messages import MessageChannel
from flstream.transport.tcp import StartToken, dial
from flstream.worker.code import LearnerCode, ScriptCode, TrainCode, train_code
from flstream.worker.messages import Failed, Goodbye, ToWorker
from flstream.worker.peers import Peers
from flstream.worker.run_learner import serve_learner
from flstream.worker.run_script import serve_own_site, serve_sites
from flstream.worker.worker import Worker
from flstream.worker.worker_info import WorkerInfo


def local_worker(
    job: Job, run: RunDirectory, name: str, gpus: str | None, end: WorkerSockets
) -> None:
    """Run a worker with the GPUs of CUDA_VISIBLE_DEVICES, or as the job says."""
    info = _worker_info(job, run, name)
    info = info if gpus is None else replace(info, gpus=gpus)
    worker_main(info, run, train_code(job.train), job.clients.threads, end)


def evaluator_worker(
    job: Job, run: RunDirectory, name: str, gpus: str | None, end: WorkerSockets
) -> None:
    """Run the evaluator of a job; its code is told of the job's sites."""
    own = job.of_evaluator()
    info = replace(_worker_info(own, run, name), clients=job.clients.count)
    code = train_code(own.train)
    if isinstance(code, LearnerCode):
        code = code._replace(key="evaluate.learner")
    worker_main(info, run, code, own.clients.threads, end)


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


def _worker_info(job: Job, run: RunDirectory, name: str) -> WorkerInfo:
    is_own, gpus = job.clients.workers == job.clients.count, job.clients.gpus
    return WorkerInfo(
        name=name,
        site=name if is_own else None,
        index=job.clients.site_names.index(name) if is_own else None,
        job=job.name,
        clients=job.clients.count,
        rounds=job.planned_rounds,
        seed=job.seed,
        sites_folder=str(run.sites),
        job_folder=str(job.folder),
        gpus=gpus[job.clients.worker_names.index(name) % len(gpus)] if gpus else None,
        site_args=job.clients.args,
        model_args=job.model.args,
        alias=job.train.alias,
        exchange_format=job.train.exchange_format,
        streaming=stream_settings(job, job.train.exchange_format),
        include=job.aggregation.include,
        exclude=job.aggregation.exclude,
        optimizer_state=job.train.optimizer_state,
        filters_up=job.filters.up,
        filters_down=job.filters.down,
        codecs_up=job.streaming.codecs.of_updates,
        codecs_down=job.streaming.codecs.of_models,
        base=job.base,
        links=job.links([name] if is_own else job.clients.site_names),
    )


def worker_main(
    info: WorkerInfo, run: RunDirectory, code: TrainCode, threads: int, end: WorkerSockets
) -> None:
    """Run tasks until the server ends the run, with a number of torch's threads."""
    ignore_interrupts()
    try:
        own = run.log(info.name) if info.site is None else run.site_log(info.site)
        logs = SiteLogs(own, run.site_log)
        prepare_imports(info.alias, info.job_folder, info.base)
        refuse_breakpoints(info.site or "SITE")
        if info.gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = info.gpus  # read with the first use of CUDA
        if isinstance(code, ScriptCode) and code.command is not None:
            run_command(info, code, threads, end)
            return
        import torch

        torch.set_num_threads(threads)
        end_with_peer(end.control)
        if this_place() is None:
            have_fork_as_default()
        with serving(info, end, logs.enter) as worker:
            if isinstance(code, LearnerCode):
                serve_learner(worker, code)
            elif info.site is not None:
                serve_own_site(worker, code)
            else:
                serve_sites(worker, code)
            worker.send(Goodbye(own_peak_rss()))
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
    limits, relay = limits_for(info.streaming), None
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
        if info.links:
            relay = stack.enter_context(closing(LinkRelay(info.links, info.seed, info.site)))
            abandon_in_children(relay.abandon)
        service = stack.enter_context(DownloadService(limits=limits))
        peers = stack.enter_context(closing(Peers(info, end.peers, service, relay)))
        service.attach(channel(end.up, "up"), receiver=SERVER)
        down = stack.enter_context(Receiver(channel(end.down, "down"), SERVER, limits=limits))
        yield Worker(info, control, down, service, peers, entered)


def have_fork_as_default() -> None:
    """Make fork the start method, which training code may change.

    So that starts its processes as it does elsewhere on Linux: those of the launcher's fork server
    would import everything anew, and the script itself.
    """
    multiprocessing.set_start_method(None, force=True)
    if multiprocessing.get_all_start_methods()[0] != "fork":  # from Python 3.14 on
        multiprocessing.set_start_method("fork", force=True)
