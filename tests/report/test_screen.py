"""What the live view sends to a terminal keeps its picture steady, and leaves nothing behind."""

import signal

import pytest
from rich.cells import cell_len
from terminals import frames_of, run_on_terminal

# A run whose events come from nowhere: it ends once the view has shown all of them.
VIEW = """
import sys, threading
from rich.live import Live
from flstream.report.console import make_console
from flstream.report.live.view import watching
from flstream.telemetry.memory import MemorySampler
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
from runs import MIB, snapshot, started
frames, refresh = threading.Semaphore(0), Live.refresh
def counted(live):
    refresh(live)
    frames.release()
Live.refresh = counted
console = make_console()
half = {f"site-{n}": ("downloading", 32 * MIB) for n in (1, 2, 3, 4)}
with watching(console) as listen:
    for event in (*started(4, "digits"), snapshot("downloading", 4, half)):
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


def drawn_on(width, height, **environment):
    """The output on a terminal of this size, the last frame in it, and all its styles."""
    output, status = run_on_terminal(VIEW, width, height, environment, HERE, "drawn")
    assert status == 0
    frames, styles = frames_of(output)
    assert len(frames) > 1
    for frame in frames:
        # Each covers the whole of the one before.
        assert [cell_len(line) for line in frame] == [width] * height
    assert frames[-1][0].startswith("digits")
    return output, frames[-1], styles


def test_on_a_terminal_nothing_wraps_and_everything_is_put_back():
    output, lines, styles = drawn_on(80, 24)
    assert output.startswith("\x1b[?1049h")
    assert output.partition("\x1b[?1049l")[2].strip() == "the result"
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    assert any(line.startswith("site-1") for line in lines)
    assert styles & {"36", "1;36"}


@pytest.mark.nightly
def test_a_width_that_the_terminal_does_not_have_is_not_believed_and_no_colour_is_obeyed():
    _, lines, styles = drawn_on(60, 20, COLUMNS="150", LINES="90", NO_COLOR="1")
    # Bold, dim, and back to plain: those are no colours.
    assert styles <= {"0", "1", "2"}
    assert any("\u2501" * 3 in line and "128 MiB of 256" in line for line in lines)


def test_a_terminal_without_unicode_or_any_codes_gets_none():
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "TERM": "dumb"}
    output, status = run_on_terminal(VIEW, 80, 24, ascii_only, HERE, "plain")
    assert status == 0
    assert output.isascii()
    assert "\x1b" not in output
    assert "00:00:00  digits: 10 rounds, 4 sites, pull mode" in output


def test_an_interrupted_view_gives_the_terminal_back():
    output, status = run_on_terminal(VIEW, 80, 24, {}, HERE, "interrupted")
    assert status == -signal.SIGINT
    assert output.index("\x1b[?25h") < output.index("\x1b[?1049l") < output.index("Traceback")
