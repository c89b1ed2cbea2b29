"""A run in one process: threads in place of processes, one running at a time.

It is for debugging. A breakpoint in any code of the user's opens pdb on the terminal, whose lines
are read by the thread that the run was started in, so that Ctrl-C ends the waiting for one.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import os
import pdb
import select
import signal
import socket
import sys
import threading
import time
import traceback
from bdb import BdbQuit
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from pkgutil import resolve_name
from queue import Empty, SimpleQueue
from typing import Any, Self

from flstream.debugging import hooked
from flstream.engines.engine import WorkerSockets
from flstream.engines.processes import ProcessHost
from flstream.errors import AbortedError, UsageError
from flstream.job import Job
from flstream.job.code import package_root
from flstream.simulation.child import this_place
from flstream.simulation.interruption import handling
from flstream.simulation.places import EndedError, Places, ThreadPlace
from flstream.telemetry.events import SERVER
from flstream.tracking.feed import TRACKER
from flstream.transport.channel import Signal

# Time for threads to end that have been asked to.
_GRACE_SECONDS = 2.0

_one_run = threading.Lock()


class _Stream:
    """Standard stream of all threads, to each place's log and to the terminal."""

    def __init__(self, terminal: Any, places: Places, *, is_shown: bool) -> None:
        self._terminal = terminal
        self._places = places
        self._caller = threading.get_ident()
        self.is_shown = is_shown

    def write(self, text: str) -> int:
        """Write to the log and the terminal; the caller's thread to the terminal alone."""
        if threading.get_ident() != self._caller:
            place = self._places.speaking
            if place.log is not None:
                with suppress(OSError, ValueError):
                    place.log.write(text)
            if place.is_ended or not self.is_shown:
                return len(text)
        return int(self._terminal.write(text))

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)


class InlineHost(ProcessHost):
    """Host with threads of this process as processes, one running at a time."""

    def __init__(self, job: Job, stop: Signal, *, is_shown: bool) -> None:
        super().__init__()
        self._job = job
        self._stop = stop
        self._is_shown = is_shown
        self._threads: list[ThreadPlace] = []
        self._prompts: SimpleQueue[tuple[object, Future[str]]] = SimpleQueue()
        self._input = builtins.input
        self._caller = threading.get_ident()
        self._is_over = False
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        if not _one_run.acquire(blocking=False):
            raise UsageError(
                "a run with engine.type = inline is under way in this process, which has room for "
                "one; wait for its end, or take engine.type = local"
            )
        with ExitStack() as stack:
            stack.callback(_one_run.release)
            self._prompted = stack.enter_context(closing(Signal()))
            if not gc.get_freeze_count():
                # Scripts that sites share collect garbage after each task, which is then theirs.
                gc.freeze()
                stack.callback(gc.unfreeze)
            importlib.invalidate_caches()  # the job's files may be new
            self._places = Places(_folders(self._job), self._job.clients.threads)
            stack.callback(self._places.close)
            self._output = _Stream(sys.stdout, self._places, is_shown=self._is_shown)
            self._errors = _Stream(sys.stderr, self._places, is_shown=True)
            sys.stdout, sys.stderr = self._output, self._errors
            for module, name, ours in (
                (builtins, "input", self._line),
                (sys, "breakpointhook", self._break),
            ):
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, ours)
            stack.enter_context(hooked(self._places.waiting, self._failed))
            stack.callback(self._end_threads)
            self._resources = stack.pop_all()
        return self

    def start(self, name: str, target: str, *args: Any) -> ThreadPlace:
        """Start a thread, which has duplicates of the sockets among its arguments."""
        place = ThreadPlace(name, os.getpid() if name == SERVER else 0, self._places)

        def duplicate(argument: Any) -> Any:
            if isinstance(argument, WorkerSockets):
                return WorkerSockets(*map(duplicate, argument))
            if isinstance(argument, socket.socket):
                place.sockets.append(argument.dup())
                return place.sockets[-1]
            return argument

        arguments = place, resolve_name(target), [duplicate(argument) for argument in args]
        place.thread = threading.Thread(target=self._run, args=arguments, name=name, daemon=True)
        self._threads.append(place)
        place.thread.start()
        return place

    def attend(self, fd: int) -> None:
        """Read lines for threads, until a descriptor has input or the run stops."""
        poll = select.poll()
        for waited in (fd, self._stop.fileno(), self._prompted.fileno()):
            poll.register(waited, select.POLLIN)
        while True:
            events = {ready for ready, _ in poll.poll()}
            if self._prompted.fileno() in events:
                self._read_lines()
            if events & {fd, self._stop.fileno()}:
                return

    def wait(self, seconds: float) -> bool:
        """Wait until every thread has ended."""
        ends = time.monotonic() + seconds
        for place in self._threads:
            place.thread.join(max(ends - time.monotonic(), 0.0))
        return not any(place.thread.is_alive() for place in self._threads)

    def close(self) -> None:
        """End every thread, and restore the state of this process before the run."""
        self._resources.close()

    def _run(self, place: ThreadPlace, target: Callable[..., None], arguments: list[Any]) -> None:
        try:
            with self._places.entered(place, (self._output, self._errors)):
                target(*arguments)
        except EndedError:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            for end in place.sockets:
                # A child that training code has forked may have it open, too.
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            place.close()

    def _end_threads(self) -> None:
        self._is_over = True
        self._read_lines()
        for place in self._threads:
            place.kill()
        if not self.wait(_GRACE_SECONDS):
            self._places.take_away()
        if not self.wait(_GRACE_SECONDS):
            names = [place.name for place in self._threads if place.thread.is_alive()]
            print(
                f"flstream: code of {', '.join(names)} does not end with the run", file=sys.stderr
            )

    def _failed(self, error: BaseException) -> None:
        """Show an error of user code, and stop in the debugger where the user wants."""
        place = this_place()
        if isinstance(error, EndedError):
            raise error
        if isinstance(error, BdbQuit):
            self._stop.set()
        elif not self._stop.is_set():
            traceback.print_exception(error)
            if self._job.engine.pdb and isinstance(error, Exception):
                self._output.is_shown = True
                pdb.post_mortem(error.__traceback__)
        if self._stop.is_set() and place is not None:
            # Once the run stops, an error is not the site's failure.
            if place.name in (SERVER, TRACKER):
                raise AbortedError("the run was stopped")
            self._places.await_end(place)

    def _break(self, *args: Any, **kwargs: Any) -> Any:
        """Open the debugger for ``breakpoint()``, as Python does."""
        self._output.is_shown = True
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **kwargs)
        return pdb.Pdb().set_trace(sys._getframe().f_back)

    def _line(self, text: object = "", /) -> str:
        """Read a line as ``input()`` does, in the thread that began the run."""
        if threading.get_ident() == self._caller:
            return self._input(text)
        line: Future[str] = Future()
        self._prompts.put((text, line))
        self._prompted.set()
        if self._is_over:
            raise EOFError
        return line.result()

    def _read_lines(self) -> None:
        self._prompted.clear()
        with suppress(Empty):
            while True:
                text, line = self._prompts.get_nowait()
                if self._is_over or self._stop.is_set():
                    line.set_exception(EOFError())
                    continue
                try:
                    with handling(signal.default_int_handler):
                        line.set_result(self._input(text))
                except KeyboardInterrupt:
                    self._stop.set()
                    line.set_exception(EOFError())
                except BaseException as error:
                    line.set_exception(error)


def _folders(job: Job) -> set[Path]:
    """Return the folders of a job's own code."""
    sources = [section.source for section in job.client_code.values()]
    return {job.folder, *(package_root(source) for source in sources if source is not None)}
