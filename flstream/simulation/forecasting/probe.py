"""The layout of a job's model and the memory of its processes, found out in a process of its own.

The process imports what the training code imports at its top level, and measures itself. Then it
calls the factory, first on torch's meta device, where tensors have shapes and no bytes. A factory
that needs real bytes is called again, limited to the available memory.
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import socket
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from flstream.client.alias import install as install_alias
from flstream.client.run_learner import Evaluates, Trains
from flstream.engines.fork_server import host_for
from flstream.engines.processes import ProcessHost
from flstream.errors import FlstreamError, LayoutError, ModelError, UsageError
from flstream.job import Job
from flstream.job.code import check, load, make_importable
from flstream.model.fitted import Arranged, Differences
from flstream.model.formats.opening import open_checkpoint
from flstream.model.layout import Layout, parse_header
from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output
from flstream.simulation.factory import layout_on
from flstream.simulation.forecasting.forecast import Imports
from flstream.simulation.model_builder import expect_fit
from flstream.text import signal_name
from flstream.units import format_bytes

_NAME = "model-probe"
# Time for the process to end after it has answered or closed its socket.
_END_SECONDS = 5.0


class Probe(NamedTuple):
    """Facts about a job that its code alone has.

    Attributes:
        layout: Layout of its initial model.
        imports: Memory of what its processes import.
        differences: Sentence on tensors that its file of weights and its model do not share.
    """

    layout: Layout
    imports: Imports
    differences: str = ""


class _Answer(msgspec.Struct, frozen=True):
    """Answer of the process: the model's header, or an error and whether real bytes may help."""

    header: bytes = b""
    imports: Imports = Imports()
    error: str = ""
    again: bool = False


def probe(job: Job, host: ProcessHost | None = None) -> Probe:
    """Find out the layout of a job's model, and the memory of its processes.

    Args:
        job: The job.
        host: Host of the process; None for one of the job's own.

    Raises:
        ModelError: The factory failed, or returned something that is not a model, or one that
            cannot be streamed; or the file's tensors are not those of the factory's model.
        CheckpointError: The weights cannot be read.
    """
    weights = None if job.model.initial is None else open_checkpoint(job.model.initial)
    with nullcontext(host) if host is not None else host_for(job) as chosen:
        answer = _ask(job, chosen)
    if answer.header:
        layout, difference = parse_header(answer.header, "the model")[0], ""
        if weights is not None and job.model.initial is not None:
            expect_fit(job.model, layout, weights.layout)
            differences = Differences.between(layout, weights.layout)
            difference = differences.sentence(job.model.initial.name) if differences else ""
        return Probe(layout, answer.imports, difference)
    assert weights is not None  # loading the job file checked that there is one of the two
    whole = weights if weights.layout.is_canonical else Arranged(weights)
    return Probe(whole.layout, answer.imports)


def _ask(job: Job, host: ProcessHost, device: str | None = "meta") -> _Answer:
    """Call the factory in a process of this host, on a device; None is torch's default."""
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rb") as reader:
        with theirs:
            host.start(_NAME, f"{__name__}:_main", job, device, theirs)
        data = reader.read()
    if not data:
        code = host.exit_code(_NAME, _END_SECONDS) or 0
        end = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with status {code}"
        lack = ", as if the machine had too little memory" if code == -signal.SIGKILL else ""
        factory = f"model.factory {job.model.factory}"
        raise ModelError(f"{factory}: the process that called it {end}{lack}")
    answer = msgspec.msgpack.decode(data, type=_Answer)
    if answer.again:
        return _ask(job, host, None)
    if answer.error:
        raise ModelError(answer.error)
    return answer


def _main(job: Job, device: str | None, launcher: socket.socket) -> None:
    """Run the process: import the training code's modules, call the factory, answer, and end."""
    ignore_interrupts()
    redirect_output(Path(os.devnull))
    end_with_peer(launcher)
    available = _limit_memory()
    if job.train.alias is not None:
        install_alias()
    make_importable(job.folder)
    before = psutil.Process().memory_full_info().uss
    if job.train.source is not None and job.train.command is None:
        _import_modules_of(job.train.source)
    own = max(psutil.Process().memory_full_info().uss - before, 0)
    answer = _Answer(imports=Imports(psutil.Process(os.getppid()).memory_info().rss, own))
    try:
        if job.train.learner is not None:
            _check_learner(job.train.learner)
        if job.model.factory is not None:
            layout, _ = layout_on(job.model.factory, job.model.args, job.seed, device)
            answer = _Answer(layout.plain_header[8:], answer.imports)
    except Exception as error:
        # Code that works on other devices may fail on the meta device.
        again = device == "meta" and not isinstance(error, LayoutError)
        answer = _Answer(error=_sentence(job, error, available), again=again)
    launcher.sendall(msgspec.msgpack.encode(answer))


def _import_modules_of(source: Path) -> None:
    """Run the import statements at the top level of a file; one that fails is left to the run."""
    sys.path.insert(0, str(source.parent))
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.parse(source.read_bytes()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                with suppress(Exception, SystemExit):
                    exec(compile(ast.Module([node], []), str(source), "exec"), {})


def _check_learner(named: str) -> None:
    where = f"train.learner {named}"
    with suppress(ModuleNotFoundError):  # which validate lists by itself
        try:
            check(load(named), where, Trains, Evaluates)
        except (FlstreamError, ModuleNotFoundError):
            raise
        except Exception as error:
            raise UsageError(f"{where}: {type(error).__name__}: {error}") from error


def _limit_memory() -> int:
    """Limit this process to the available memory, and return that in bytes."""
    available = psutil.virtual_memory().available
    most = psutil.Process().memory_info().data + available
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:  # which only root may raise
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    return available


def _sentence(job: Job, error: Exception, available: int) -> str:
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return (
            f"model.factory {job.model.factory}: the model does not fit into the "
            f"{format_bytes(available)} of memory that are available; make it smaller, or free "
            "memory"
        )
    if isinstance(error, FlstreamError):
        return str(error)
    return f"model.factory {job.model.factory}: {type(error).__name__}: {error}"
