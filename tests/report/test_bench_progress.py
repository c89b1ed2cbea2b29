"""How far a bench is: lines in a log, and a bar that keeps to one line."""

import io

from flstream.bench.schedule import Step
from flstream.report.bench.progress import watching_bench
from flstream.report.console import make_console


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_has_a_line_for_each_step_and_no_escape_codes():
    file = io.StringIO()
    with watching_bench(make_console(file=file)) as watcher:
        watcher.stepped(Step("what this machine can do", 0, 0, 0.0, None))
        watcher.planned(2, 95.4)
        for share in (0.0, 0.1, 0.2):
            watcher.stepped(Step("pull, run 1 of 1", 1, 2, share, 95.4))
        watcher.stepped(Step("native, run 1 of 1", 2, 2, 0.5, 20.2))
    assert file.getvalue().splitlines() == [
        "what this machine can do",
        "2 runs, about 1m 40s in all",
        "[1/2] pull, run 1 of 1; about 1m 40s left",
        "[2/2] native, run 1 of 1; about 21 s left",
    ]


def test_a_terminal_has_a_bar_on_one_line_with_the_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    file = Terminal()
    with watching_bench(make_console(file=file, width=80)) as watcher:
        watcher.planned(27, 700.0)
        watcher.stepped(Step("native, run 10 of 10", 27, 27, 0.34, 370.0))
        watcher._progress.refresh()
    text = file.getvalue()
    assert "27 runs, about 12m in all" in text
    assert "[27/27] native, run 10 of 10" in text
    assert "34%" in text
    assert "6m 10s left" in text
    frames = text.replace("\x1b[2K", "").replace("\r", "\n").splitlines()
    assert max(map(len, frames)) <= 90  # 80, and the codes that hide and move the cursor
    assert "\x1b[3" not in text.replace("\x1b[?25", "")
