"""The command of a site: the launcher that starts the processes of its training script."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from flstream.client.rank_link import INHERITED
from flstream.client.run_script import last_line
from flstream.engines.process_tree import kill_descendants
from flstream.engines.sockets_folder import sockets_folder
from flstream.errors import SimulationError
from flstream.text import how_ended
from flstream.transport.channel import Signal

STUB = Path(__file__).parent / "stub" / "flstream_rank.py"
"""The file that a command runs in each of its processes, with the script's path after it."""

_LOG = Path("/proc/self/fd/2")
# From Linux's prctl.h.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Of torchrun, which accelerate uses: a free port for each site instead of the same one for all.
_STANDALONE = {"PET_STANDALONE": "1"}
_libc = ctypes.CDLL(None)


class CommandFolder:
    """A private folder for the files of a command, removed at the end; a context manager.

    It lies in the run's own, which the launcher removes if this process is killed before that.

    Attributes:
        path: Path of the folder.
        temporary: Path of the folder for temporary files of the command's processes: torchrun
            leaves one behind each time.
    """

    def __enter__(self) -> Self:
        self.path = Path(tempfile.mkdtemp(prefix="site-", dir=sockets_folder()))
        self.temporary = self.path / "tmp"
        self.temporary.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        # A process that was killed a moment ago may still be writing there; the rest goes with the
        # run's folder.
        shutil.rmtree(self.path, ignore_errors=True)


class Command:
    """A command that was started.

    It is to be started by the main thread, at whose end the kernel kills it.

    Args:
        words: Words of its command line.
        variables: Environment variables to add to those of this process.

    Attributes:
        words: Words of its command line.
        pid: Its pid.
        ended: Signal that is set once it has ended.

    Raises:
        SimulationError: It cannot be started.
    """

    def __init__(self, words: Sequence[str], variables: dict[str, str]) -> None:
        self.words = words
        own = {name: each for name, each in os.environ.items() if name not in INHERITED}
        # What a site has printed before does not explain how its command has ended.
        self._log_start = _log_size()
        # What a rank that is killed leaves behind, such as a data loader's processes, becomes this
        # process's, and is killed with the rest.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        parent = os.getpid()
        try:
            self._process = subprocess.Popen(
                words,
                env={**own, **_STANDALONE, **variables},
                stdin=subprocess.DEVNULL,
                preexec_fn=lambda: _end_with(parent),
            )
        except OSError as error:
            raise SimulationError(
                f"train.command: {words[0]} cannot be started: {error.strerror}; name a program"
            ) from error
        self.pid = self._process.pid
        self.ended = Signal()
        threading.Thread(target=self._wait, name="command", daemon=True).start()

    def close(self) -> None:
        """Kill the command, and all that it and this process have started."""
        kill_descendants(os.getpid())
        self._process.wait()

    @property
    def exit_code(self) -> int:
        """Its exit code, or minus the signal that killed it, once it has ended."""
        return self._process.wait()

    def outcome(self) -> str:
        """Return how it has ended, and the last line that its processes have printed."""
        how = how_ended(self.exit_code)
        line = last_line(_LOG, self._log_start)
        return f"{Path(self.words[0]).name} {how}" + (f" ({line})" if line else "")

    def _wait(self) -> None:
        self._process.wait()
        self.ended.set()


def _end_with(parent: int) -> None:
    """Have the kernel kill this process once its parent has ended, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _log_size() -> int:
    try:
        return _LOG.stat().st_size
    except OSError:
        return 0
