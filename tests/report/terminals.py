"""A real terminal that a program can be run on, and the frames that it got."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Mapping

_STYLE = re.compile(r"\x1b\[([0-9;]*)m")


def frames_of(output: str) -> tuple[list[list[str]], set[str]]:
    """The lines of each frame on the alternate screen, and the styles in them.

    Nothing but styles is in a frame: each is written over the one before, and erases nothing.
    """
    live = output.partition("\x1b[?1049h")[2].partition("\x1b[?1049l")[0]
    frames = list(filter(None, re.sub(r"\x1b\[\?25[lh]", "", live).split("\x1b[H")))
    lines = [_STYLE.sub("", frame).replace("\r", "").split("\n") for frame in frames]
    assert all(line.isprintable() for frame in lines for line in frame)
    return lines, {style for frame in frames for style in _STYLE.findall(frame)}


def run_on_terminal(
    code: str, width: int, height: int, environment: Mapping[str, str], *arguments: str
) -> tuple[str, int]:
    """Run Python code on a terminal of this size, and return what it wrote and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        inherited = {key: value for key, value in os.environ.items() if key not in _OURS}
        # Set before anything looks at it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        command = [sys.executable, "-c", code, *arguments]
        os.execve(sys.executable, command, {**inherited, "TERM": "xterm-256color", **environment})
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
