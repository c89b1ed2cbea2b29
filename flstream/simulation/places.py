"""What the code of a process finds in it, swapped where threads of one process stand for several.

Swapped are the states of random, NumPy and torch, the working folder, sys.argv, sys.path, the
standard streams, filters of warnings, the session of the client API, the numbers of threads, and
the modules of the job's folder. Environment variables, signals, and what other libraries keep are
not.
"""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from ctypes import c_ulong, py_object, pythonapi
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from flstream.client.rank_session import RankSession
from flstream.client.session import Session, enter, present
from flstream.job.code import Imported, exchange_imported

_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = {sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")}
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class EndedError(BaseException):
    """The thread is to end, as a process does that is killed."""


class _State(NamedTuple):
    """What is swapped, as it is at one time.

    Attributes:
        python: State of Python's random numbers.
        numpy: The same of NumPy's.
        torch: The same of torch's, on the CPU.
        devices: The same of torch's, on devices that are in use.
        dtype: Torch's default dtype.
        threads: Number of torch's threads.
        folder: The working folder; None for one that is gone.
        argv: The list of a script's arguments.
        path: Entries of sys.path.
        finders: Entries of sys.meta_path.
        streams: Standard output and standard error.
        filters: Filters of warnings.
        session: The session of the client API.
        main: The module `__main__`.
        modules: Modules of the job's folder, by name.
        imported: Files that the job names and that were imported.
    """

    python: Any
    numpy: Any
    torch: Any
    devices: list[Any]
    dtype: Any
    threads: int
    folder: str | None
    argv: list[str]
    path: list[str]
    finders: list[Any]
    streams: tuple[Any, Any]
    filters: Any
    session: Session | RankSession | None
    main: ModuleType
    modules: dict[str, ModuleType]
    imported: Imported

    @classmethod
    def take(cls, modules: dict[str, ModuleType]) -> _State:
        """Return what there is now, with the modules that were found in sys.modules."""
        import torch

        folder = None
        with suppress(FileNotFoundError):
            folder = os.getcwd()
        return cls(
            random.getstate(),
            np.random.get_state(),
            torch.get_rng_state(),
            _device_states(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            folder,
            sys.argv,
            list(sys.path),
            list(sys.meta_path),
            (sys.stdout, sys.stderr),
            warnings.filters,
            present(),
            sys.modules["__main__"],
            modules,
            exchange_imported({}),
        )

    def put_back(self) -> None:
        """Have the process be as it was."""
        import torch

        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.devices:
            torch.cuda.set_rng_state_all(self.devices)
        torch.set_default_dtype(self.dtype)
        torch.set_num_threads(self.threads)
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.folder)
        sys.argv, sys.path[:], sys.meta_path[:] = self.argv, self.path, self.finders
        sys.stdout, sys.stderr = self.streams
        warnings.filters = self.filters
        enter(self.session)
        sys.modules["__main__"] = self.main
        sys.modules.update(self.modules)
        exchange_imported(self.imported)


def _filters_of_a_process() -> Any:
    """Return the filters of warnings that Python begins with."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for ignored in (
            ResourceWarning,
            ImportWarning,
            PendingDeprecationWarning,
            DeprecationWarning,
        ):
            warnings.simplefilter("ignore", ignored)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        return warnings.filters


def _device_states() -> list[Any]:
    """Return the states of torch's generators on devices, if any is in use."""
    import torch

    is_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if is_in_use else []


class ThreadPlace:
    """What stands for one process: a thread, and the state that its code finds.

    Args:
        name: Name of the process that it stands for.
        state: State that its code finds at its beginning.

    Attributes:
        name: As given.
        state: The state while another place has the process.
        thread: Number of its thread; 0 until that has begun.
        is_ended: Whether it is to end, as a process does that is killed.
        log: File that its output goes to; None for none.
    """

    def __init__(self, name: str, state: _State) -> None:
        self.name = name
        self.state = state
        self.thread = 0
        self.is_ended = False
        self.log: IO[str] | None = None

    def log_to(self, path: Path) -> None:
        """Have the output of its code go to a file from now on."""
        self.close()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.log = path.open("a", buffering=1, errors="backslashreplace")

    def close(self) -> None:
        """Close its log."""
        if self.log is not None:
            with suppress(OSError):
                self.log.close()


class _Here(threading.local):
    """The place of each thread; None for threads that stand for no process."""

    place: ThreadPlace | None = None


_here = _Here()


def this_place() -> ThreadPlace | None:
    """Return the place of this thread; None where it stands for no process."""
    return _here.place


class Places:
    """The places of a run, one of which has the process at a time.

    A thread gives the process up where it waits for others, and at its end.

    Args:
        roots: Folders whose modules each place imports for itself.
        threads: Number of torch's threads in each place.

    Attributes:
        streams: Standard output and standard error of new places.
    """

    def __init__(self, roots: Iterable[Path], threads: int) -> None:
        self._roots = [str(root) for root in roots]
        self._threads = threads
        self._turn = threading.Condition()
        self._holder: ThreadPlace | None = None
        self._path = list(sys.path)
        self._shared: set[str] = set()
        # What the run's caller has, whose thread runs no code of the user's meanwhile.
        self._outside = ThreadPlace("outside", _State.take(self._take_modules()))
        self._present = self._outside  # whose state the process has
        self.streams: tuple[Any, Any] = sys.stdout, sys.stderr

    @property
    def holder(self) -> ThreadPlace | None:
        """The place that has the process; None while all of them wait."""
        return self._holder

    @property
    def speaking(self) -> ThreadPlace:
        """The place whose code a thread runs that has none itself, such as a loader's."""
        return _here.place or self._present

    def new(self, name: str) -> ThreadPlace:
        """Return a place whose code finds what the run's caller had, but for modules."""
        state = self._outside.state._replace(
            threads=self._threads,
            streams=self.streams,
            filters=_filters_of_a_process(),
            session=None,
            modules={},
            imported={},
        )
        return ThreadPlace(name, state)

    @contextmanager
    def entered(self, place: ThreadPlace) -> Iterator[None]:
        """Have this thread stand for a process until the end of the block."""
        _here.place, place.thread = place, threading.get_ident()
        try:
            self._begin(place)
            yield
        finally:
            self._give(place)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let other places have the process while this thread waits."""
        place = _here.place
        if place is None or self._holder is not place:
            yield
            return
        self._give(place)
        try:
            yield
        finally:
            self._begin(place)

    def await_end(self) -> NoReturn:
        """Let other places have the process until this thread's is ended."""
        place = _here.place
        assert place is not None
        self._give(place)
        with self._turn:
            self._turn.wait_for(lambda: place.is_ended)
        self._begin(place)
        raise EndedError

    def end(self, place: ThreadPlace) -> None:
        """End a place where it waits, or at its next line of Python in code of the user's."""
        with self._turn:
            place.is_ended = True
            if self._holder is place and place.thread != threading.get_ident():
                frame = sys._current_frames().get(place.thread)
                # Code of ours waits soon, and cleans up what nobody else can.
                while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
                    if _is_inside(frame.f_code.co_filename, self._roots):
                        interrupt(place)
                        break
                    frame = frame.f_back
            self._turn.notify_all()

    def close(self) -> None:
        """Put back what the run's caller had, whoever has the process."""
        with self._turn:
            self._holder = self._outside
            self._swap(self._outside)
            self._turn.notify_all()

    def _begin(self, place: ThreadPlace) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._holder in (None, self._outside))
            if self._holder is None:
                self._holder = place
                self._swap(place)
        if place.is_ended or self._holder is not place:
            raise EndedError  # only now, since code that cleans up needs what it had

    def _give(self, place: ThreadPlace) -> None:
        with self._turn:
            if self._holder is place:
                self._holder = None
                self._turn.notify()

    def _swap(self, place: ThreadPlace) -> None:
        if self._present is place:
            return
        modules = self._take_modules()
        if self._present is not self._outside:
            self._present.state = _State.take(modules)
        place.state.put_back()
        self._present = place

    def _take_modules(self) -> dict[str, ModuleType]:
        """Remove the modules of the job's folder from sys.modules, and return them."""
        roots = [*self._roots, *(each for each in sys.path if each and each not in self._path)]
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


def interrupt(place: ThreadPlace) -> None:
    """Raise EndedError in the thread of a place, wherever its code is."""
    pythonapi.PyThreadState_SetAsyncExc(c_ulong(place.thread), py_object(EndedError))


def _is_own(name: str, roots: list[str]) -> bool:
    """Whether a module, which is in no package, is imported by each place for itself."""
    if name == "nvflare":  # its names may stand for others: train.alias
        return True
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return isinstance(file, str) and _is_inside(file, roots)


def _is_inside(file: str, roots: list[str]) -> bool:
    """Whether a file is in one of these folders, and not installed."""
    inside = any(file.startswith(root.rstrip(os.sep) + os.sep) for root in roots)
    is_installed = file.startswith((_OURS, *_LIBRARIES)) or any(each in file for each in _INSTALLED)
    return inside and not is_installed
