"""A terminal that tells what stands on it, and a real one that a program can be run on."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Mapping

_SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|\x1b(.)", re.DOTALL)


class Terminal:
    """What the live view uses of a terminal. Anything else that is sent to it is an error.

    Attributes:
        wraps: how often a character came when its line was full.
        styles: every SGR parameter that was sent.
        modes: what was switched on: 1049, the alternate screen; 25, the cursor.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells = [[" "] * width for _ in range(height)]
        self.x = self.y = 0
        self.wraps = 0
        self.styles: set[str] = set()
        self.modes = {"1049": False, "25": True}

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]

    def feed(self, text: str) -> None:
        at = 0
        for match in _SEQUENCE.finditer(text):
            self._write(text[at : match.start()])
            self._obey(*match.groups())
            at = match.end()
        self._write(text[at:])

    def _write(self, text: str) -> None:
        for char in text:
            if char == "\r":
                self.x = 0
            elif char == "\n":
                self.y = min(self.y + 1, self.height - 1)
            else:
                assert char.isprintable(), repr(char)
                if self.x >= self.width:
                    self.wraps += 1
                    self.x, self.y = 0, min(self.y + 1, self.height - 1)
                self.cells[self.y][self.x] = char
                self.x += 1

    def _obey(self, private: str, parameters: str, command: str, other: str | None) -> None:
        assert other is None, f"unknown escape {other!r}"
        match private + command, parameters:
            case "m", _:
                self.styles |= set(parameters.split(";"))
            case "H", _:
                row, column = [*map(int, parameters.split(";")), 1][:2] if parameters else (1, 1)
                self.y, self.x = max(row, 1) - 1, max(column, 1) - 1
            case "?h" | "?l", "1049" | "25":
                self.modes[parameters] = command == "h"
            case _:  # among them whatever erases: frames are written over one another
                raise AssertionError(f"unexpected sequence {private}{parameters}{command}")


def run_on_terminal(
    code: str, width: int, height: int, environment: Mapping[str, str], *arguments: str
) -> tuple[str, int]:
    """Run Python code on a terminal of this size, and return what it wrote and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        kept = {key: value for key, value in os.environ.items() if key not in _OURS}
        # Set before anything looks at it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        command = [sys.executable, "-c", code, *arguments]
        os.execve(sys.executable, command, {**kept, "TERM": "xterm-256color", **environment})
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # the terminal's other side is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return b"".join(pieces).decode(), os.waitstatus_to_exitcode(status)


# What would change how a terminal is written to.
_OURS = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM", "COLORTERM", "TTY_COMPATIBLE")
