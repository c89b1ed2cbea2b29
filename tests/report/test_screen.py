"""What the live view sends to a terminal keeps its picture steady, and leaves nothing behind."""

import io
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from terminals import Terminal, run_on_terminal

from flstream.report.live.screen import Screen

# A run whose events come from nowhere: it ends once the view has shown all of them.
VIEW = """
import sys, threading
from flstream.report.console import make_console
from flstream.report.live.screen import Screen
from flstream.report.live.view import watching
from flstream.telemetry.memory import MemorySampler
sys.path.insert(0, sys.argv[1])
from runs import started
frames, paint = threading.Semaphore(0), Screen.paint
def counted(screen, lines, size):
    paint(screen, lines, size)
    frames.release()
Screen.paint = counted
console = make_console()
with watching(console) as listen:
    for event in started(4, "digits"):
        listen(event, MemorySampler())
    if sys.argv[2] == "interrupted":
        raise KeyboardInterrupt
    if sys.argv[2] == "drawn":
        while frames.acquire(blocking=False):
            pass
        # The frame under way may be of before the events; the next one is not.
        assert frames.acquire(timeout=60) and frames.acquire(timeout=60)
print("the result")
"""
HERE = __file__.rpartition("/")[0]


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def painted(*frames: list[str], width: int = 20, height: int = 5) -> tuple[Terminal, list[str]]:
    """Return a terminal after these frames, and what was sent to it for each."""
    file = Tty()
    console = Console(file=file, force_terminal=True, width=width, height=height)
    screen, terminal, sent = Screen(console), Terminal(width, height), []
    for lines in frames:
        screen.paint([Text(line) for line in lines], (width, height))
        sent.append(file.getvalue())
        file.seek(0)
        file.truncate()
        terminal.feed(sent[-1])
    return terminal, sent


def live_part(output: str) -> str:
    """Return what was written between taking the screen and giving it back."""
    return output.partition("\x1b[?1049h")[2].partition("\x1b[?1049l")[0]


LINES = st.text(st.sampled_from("ab \u2501"), max_size=20).map(str.rstrip)


@given(st.lists(st.lists(LINES, max_size=5), min_size=1, max_size=6))
def test_after_any_frames_the_last_one_is_what_stands_there(frames: list[list[str]]) -> None:
    terminal, _ = painted(*frames)
    assert terminal.lines == frames[-1] + [""] * (5 - len(frames[-1]))
    assert terminal.wraps == 0


def test_only_lines_that_changed_are_written_and_nothing_is_erased_before() -> None:
    first = ["title 1.0 s", "x" * 20, "the same"]
    _, sent = painted(first, ["title 1.1 s", "x" * 20, "the same"], first[:2])
    assert "\x1b[2J" in sent[0]
    assert sent[1] == "\x1b[1;1Htitle 1.1 s\x1b[0K"
    assert "\x1b[2J" not in sent[2]
    _, sent = painted(first, first)
    assert sent[1] == ""


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_on_a_terminal_nothing_wraps_and_everything_is_put_back(width: int, height: int) -> None:
    output, status = run_on_terminal(VIEW, width, height, {}, HERE, "drawn")
    assert status == 0
    before, _, rest = output.partition("\x1b[?1049h")
    live, _, after = rest.partition("\x1b[?1049l")
    terminal = Terminal(width, height)
    terminal.feed(live)
    assert (before, after.strip()) == ("", "the result")
    assert terminal.wraps == 0
    assert terminal.lines[0].startswith("digits  round 1 of 10")
    assert any(line.startswith("site-1") for line in terminal.lines)
    assert terminal.styles & {"36", "1;36"}
    assert terminal.has_cursor


@pytest.mark.parametrize(("columns", "width"), [("150", 60), ("40", 40)])
def test_a_width_that_the_terminal_does_not_have_is_not_believed(columns: str, width: int) -> None:
    environment = {"COLUMNS": columns, "LINES": "90"}
    output, _ = run_on_terminal(VIEW, 60, 20, environment, HERE, "drawn")
    terminal = Terminal(width, 20)
    terminal.feed(live_part(output))
    assert terminal.wraps == 0
    assert terminal.lines[0].startswith("digits")


def test_with_no_color_nothing_is_coloured_and_bars_can_still_be_read() -> None:
    output, _ = run_on_terminal(VIEW, 80, 24, {"NO_COLOR": "1"}, HERE, "drawn")
    terminal = Terminal(80, 24)
    terminal.feed(live_part(output))
    # Bold, dim, and back to plain: those are no colours.
    assert terminal.styles <= {"0", "1", "2"}
    assert any("\u2500" * 8 in line for line in terminal.lines)


def test_on_a_dumb_terminal_a_run_is_plain_lines() -> None:
    output, status = run_on_terminal(VIEW, 80, 24, {"TERM": "dumb"}, HERE, "plain")
    assert status == 0
    assert "\x1b" not in output
    assert "00:00:00  digits: 10 rounds, 4 sites, pull mode" in output


def test_a_terminal_without_unicode_gets_bars_of_ascii() -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    output, status = run_on_terminal(VIEW, 80, 24, ascii_only, HERE, "drawn")
    assert status == 0
    assert output.isascii()
    assert "." * 12 in output


def test_an_interrupted_view_gives_the_terminal_back() -> None:
    output, status = run_on_terminal(VIEW, 80, 24, {}, HERE, "interrupted")
    assert status == -signal.SIGINT
    assert output.index("\x1b[?25h") < output.index("\x1b[?1049l") < output.index("Traceback")
