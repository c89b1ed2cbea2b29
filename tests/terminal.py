"""A terminal of the tests' own, on which a command may ask for lines."""

from __future__ import annotations

import os
import pty
import signal
import sys
import traceback
from multiprocessing import forkserver

import psutil
import pytest

from flstream.cli.output import open_output
from flstream.cli.run import interrupt
from flstream.cli.run import run as run_command

VARIABLES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "TERMINAL_WIDTH")
"""What would change a terminal's width or colours."""


class Terminal:
    """A terminal that a command of the program runs on, in a child of this process."""

    def __init__(self, *command: str) -> None:
        self.output = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            status = 99
            try:
                sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "rww"[n]) for n in range(3))
                sys.argv = ["flstream", *command]
                os.environ["TERM"] = "dumb"
                vars(forkserver._forkserver)["_forkserver_pid"] = None  # that of the other tests
                signal.signal(signal.SIGINT, interrupt)
                status = int(run_command(open_output()) or 0)
                sys.stdout.flush()
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)

    def until(self, text: str) -> str:
        """Read until a text comes, and return what came before it."""
        while text not in self.output:
            try:
                piece = os.read(self._terminal, 1 << 16)
            except OSError:
                piece = b""
            assert piece, f"{text!r} did not come after:\n{self.output}"
            self.output += piece.decode().replace("\r\n", "\n")
        before, _, self.output = self.output.partition(text)
        return before

    def enter(self, text: str) -> None:
        # As in any Python, Ctrl-C that comes before a prompt waits for its line wakes nothing.
        child = psutil.Process(self._pid)
        while child.status() != psutil.STATUS_SLEEPING:
            pass
        os.write(self._terminal, text.encode())

    def pdb(self, line: str) -> str:
        """Enter a line at pdb's prompt, and return what comes before its next one."""
        self.enter(f"{line}\n")
        return self.until("(Pdb) ")

    def status(self) -> int:
        """Read to the end, and return the exit status."""
        with pytest.raises(AssertionError, match="did not come"):
            self.until("\0")
        os.close(self._terminal)
        _, status = os.waitpid(self._pid, 0)
        print(self.output)
        return os.waitstatus_to_exitcode(status)
