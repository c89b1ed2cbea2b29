"""A real browser opens the page, and has nothing to complain of."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from run_directories import finished_run

from flstream.report.html.comparison_page import write_comparison
from flstream.report.html.run_page import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)


@pytest.mark.skipif(BROWSER is None, reason=f"there is no browser ({', '.join(NAMES)}) on the PATH")
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_a_browser_opens_the_page_without_an_error_in_the_console(
    tmp_path: Path, kind: str
) -> None:
    run = finished_run(tmp_path / "run")
    page = (
        write_report(run)
        if kind == "run"
        else write_comparison([run, run], tmp_path / "comparison.html")
    )
    done = _open(page, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    # The browser's own idea of the page: nothing was lost, and the charts are drawings.
    assert done.stdout.count("<svg") == page.read_text().count("<svg")
    assert "Where the time went" in done.stdout
    assert "</html>" in done.stdout


@pytest.mark.skipif(BROWSER is None, reason=f"there is no browser ({', '.join(NAMES)}) on the PATH")
def test_the_console_would_have_been_heard(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<!DOCTYPE html><title>x</title><script>undefinedName()</script>")
    assert "CONSOLE" in _open(page, tmp_path).stderr


def _open(page: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    assert BROWSER is not None
    return subprocess.run(
        [
            BROWSER,
            "--headless",
            # Within a container of limited rights the browser cannot make one of its own.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "--disable-gpu",
            "--enable-logging=stderr",
            "--v=0",
            f"--user-data-dir={folder / 'profile'}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
