"""State of a process, swapped between threads that each stand for a process.

Swapped are the modules of the job's folder and what :func:`_swapped` lists. Environment variables,
signals, and what other libraries keep are not.
"""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import c_ulong, py_object, pythonapi
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

from flstream.engines.processes import Process
from flstream.job.code import exchange_imported
from flstream.simulation.child import this_place, this_thread
from flstream.transport.channel import is_hung_up

_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Filters of warnings that a process begins with: those of a test or a notebook are others.
_IGNORED = (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning)


class EndedError(BaseException):
    """End of a thread that stands for a killed process."""


@cache
def _swapped() -> Sequence[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return functions that take state from the process, and that restore it."""
    import torch

    from flstream.client.base import enter_base, present_base
    from flstream.client.seeding import generators, restore_generators
    from flstream.client.session import enter, present

    def attribute(module: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
        return partial(getattr, module, name), partial(setattr, module, name)

    def folder() -> str | None:
        with suppress(FileNotFoundError):  # it was removed
            return os.getcwd()
        return None

    def go_to(path: str | None) -> None:
        with suppress(OSError):
            os.chdir(path or os.sep)

    return (
        (generators, restore_generators),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (folder, go_to),
        attribute(sys, "argv"),
        attribute(sys, "stdout"),
        attribute(sys, "stderr"),
        attribute(warnings, "filters"),
        (lambda: sys.modules["__main__"], partial(sys.modules.__setitem__, "__main__")),
        (lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
        (lambda: list(sys.meta_path), lambda path: sys.meta_path.__setitem__(slice(None), path)),
        (present, enter),
        (present_base, enter_base),
        (lambda: exchange_imported({}), exchange_imported),
    )


class ThreadPlace(Process):
    """Thread that stands for a process, with the state that its code sees.

    Attributes:
        thread: The thread, which is made for it.
        sockets: The thread's ends of sockets.
        peer: The one of them with whose other end the place ends; None for none.
        is_ended: Whether it is to end, as a process does that is killed.
        log: File that its output goes to; None for none.
    """

    def __init__(self, name: str, pid: int, places: Places) -> None:
        self.name, self.pid, self._places = name, pid, places
        self.thread = threading.current_thread()
        self.sockets: list[socket.socket] = []
        self.peer: socket.socket | None = None
        self.is_ended = False
        self.log: IO[str] | None = None
        # State of its code, and the job's modules, while another place has the process.
        self._state: list[Any] = []
        self._modules: dict[str, ModuleType] = {}

    def kill(self) -> None:
        """End the thread: where it waits, or at its next line of user code."""
        self._places.end(self)
        for end in self.sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def exit_code(self, seconds: float = 0.0) -> None:
        """Return None at once: a thread has no exit code, and may need this one to wait."""

    def keep(self, modules: dict[str, ModuleType]) -> None:
        """Keep the state of the process, and modules taken from it."""
        self._modules, self._state = modules, [take() for take, _ in _swapped()]

    def keep_of(self, other: ThreadPlace) -> None:
        """Begin with the state that another place has kept, without its modules."""
        self._state = other._state

    def put_back(self) -> None:
        """Restore the kept state."""
        for (_, put), value in zip(_swapped(), self._state, strict=True):
            put(value)
        sys.modules.update(self._modules)

    def log_to(self, path: Path) -> None:
        """Write the output of its code to a file."""
        self.close()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.log = path.open("a", buffering=1, errors="backslashreplace")

    def close(self) -> None:
        """Close its log."""
        if self.log is not None:
            with suppress(OSError):
                self.log.close()


class Places:
    """Places of a run, one of which has the process at a time.

    A thread gives the process up where it waits for others, and at its end.

    Args:
        roots: Folders whose modules each place imports for itself.
        threads: Number of torch's threads in each place.

    Attributes:
        holder: The place that has the process; None while all of them wait.
    """

    def __init__(self, roots: Iterable[Path], threads: int) -> None:
        self.holder: ThreadPlace | None = None
        self._roots = [str(root) for root in roots]
        self._threads = threads
        self._turn = threading.Condition()
        self._shared = {
            name for name, module in sys.modules.copy().items() if _has_no_origin(module)
        }
        self._path = list(sys.path)
        # State of the run's caller, whose thread runs no user code meanwhile.
        self._outside = ThreadPlace("outside", 0, self)
        self._outside.keep(self._take_modules())
        self._state_of = self._outside  # the place whose state the process has

    @property
    def speaking(self) -> ThreadPlace:
        """Place whose code this thread runs, also if the code made the thread."""
        return this_place() or self._state_of

    @contextmanager
    def entered(self, place: ThreadPlace, streams: tuple[Any, Any]) -> Iterator[None]:
        """Run this thread as a process until the end of the block.

        ``place`` is new, and ``streams`` are the standard output and standard error of its code.
        """
        import torch

        from flstream.client.session import enter

        this_thread.place = place
        place.keep_of(self._outside)
        try:
            self._begin(place)
            sys.stdout, sys.stderr = streams
            sys.argv = list(sys.argv)
            exchange_imported({})
            enter(None)
            torch.set_num_threads(self._threads)
            warnings.filters = []
            warnings.resetwarnings()
            for category in _IGNORED:
                warnings.simplefilter("ignore", category)
            warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
            yield
        finally:
            self._give(place)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Give the process to other places while this thread waits."""
        place = this_place()
        if place is None or self.holder is not place:
            yield
            return
        self._give(place)
        try:
            yield
        finally:
            self._begin(place)

    def await_end(self, place: ThreadPlace) -> NoReturn:
        """Give the process to other places until this thread's place has ended."""
        self._give(place)
        with self._turn:
            self._turn.wait_for(lambda: place.is_ended)
        self._begin(place)
        raise EndedError

    def end(self, place: ThreadPlace) -> None:
        """End a place where it waits, or at its next line of user code."""
        with self._turn:
            place.is_ended = True
            if self.holder is place and place.thread is not threading.current_thread():
                frame = sys._current_frames().get(place.thread.ident or 0)
                # Code of ours waits soon, and cleans up what nobody else can.
                while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
                    if _is_inside(frame.f_code.co_filename, self._roots):
                        _interrupt(place)
                        break
                    frame = frame.f_back
            self._turn.notify_all()

    def take_away(self) -> None:
        """Take the process from a place that did not end in time; others clean up."""
        with self._turn:
            if self.holder is not None:
                _interrupt(self.holder)
            self.holder = None
            self._turn.notify()

    def close(self) -> None:
        """Restore the state of the run's caller, whoever has the process."""
        with self._turn:
            self.holder = self._state_of = self._outside
            self._take_modules()
            self._outside.put_back()
            self._turn.notify_all()

    def _begin(self, place: ThreadPlace) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self.holder in (None, self._outside))
            if self.holder is None:
                self.holder = place
                self._swap(place)
        if place.peer is not None and is_hung_up(place.peer):
            place.is_ended = True
        if place.is_ended or self.holder is not place:
            raise EndedError  # only now, since code that cleans up needs what it had

    def _give(self, place: ThreadPlace) -> None:
        with self._turn:
            if self.holder is place:
                self.holder = None
                self._turn.notify()

    def _swap(self, place: ThreadPlace) -> None:
        if self._state_of is place:
            return
        modules = self._take_modules()
        if self._state_of is not self._outside:
            self._state_of.keep(modules)
        place.put_back()
        self._state_of = place

    def _take_modules(self) -> dict[str, ModuleType]:
        """Remove the job's modules from sys.modules, and return them."""
        roots = [*self._roots, *(path for path in sys.path if path and path not in self._path)]
        own = {}
        is_own: dict[str, bool] = {}  # of packages, whose modules are many
        for name in sys.modules.keys() - self._shared - {"__main__"}:
            top = name.partition(".")[0]
            if top not in is_own:
                is_own[top] = _is_own(top, roots)
            if is_own[top]:
                own[name] = sys.modules[name]
            else:
                self._shared.add(name)
        for name in own:
            del sys.modules[name]
        return own


def _interrupt(place: ThreadPlace) -> None:
    """Raise EndedError in a place's thread, wherever its code is."""
    pythonapi.PyThreadState_SetAsyncExc(c_ulong(place.thread.ident or 0), py_object(EndedError))


def _is_own(name: str, roots: list[str]) -> bool:
    """Return whether each place imports a module for itself."""
    if name == "nvflare":  # its names may stand for others: train.alias
        return True
    module = sys.modules.get(name)
    if _has_no_origin(module):  # made by code, such as a stub
        return True
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return isinstance(file, str) and _is_inside(file, roots)


def _has_no_origin(module: object) -> bool:
    """Return whether an object in sys.modules was imported from nowhere."""
    return isinstance(module, ModuleType) and module.__spec__ is None


def _is_inside(file: str, roots: list[str]) -> bool:
    """Return whether a file is in one of these folders, and not installed."""
    if any(part in file for part in _INSTALLED):
        return False
    # The job of the bench lies in this package, and is a job's own code all the same.
    installed = [folder for folder in (_OURS, *_LIBRARIES) if file.startswith(folder)]
    return any(
        file.startswith(root.rstrip(os.sep) + os.sep) and all(map(root.startswith, installed))
        for root in roots
    )
