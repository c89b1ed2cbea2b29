"""Outputs of a bench: tables or JSON on stdout, a JSON file, a plot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console

from flstream.errors import UsageError
from flstream.report.bench.files import PICTURES, Target
from flstream.report.console import make_console

_STDOUT = "-"


class BenchFound(NamedTuple):
    """Results of a bench, ready to be written.

    Attributes:
        document: the results as JSON.
        show: function that prints them to a console.
        draw: function that draws them into a file of a kind; None where nothing can be drawn.
        failed: whether a run failed.
    """

    document: dict[str, Any]
    show: Callable[[Console], None]
    draw: Callable[[Path, str], None] | None
    failed: bool


class BenchOutputs:
    """Outputs that a command line asks for.

    The paths are checked on construction, so that one that cannot be written is reported before
    minutes of measuring.

    Args:
        json_name: value of ``--json``; None if it is not given.
        plot: value of ``--plot``; None if it is not given.

    Raises:
        UsageError: a file cannot be written.
    """

    def __init__(self, json_name: str | None, plot: Path | None) -> None:
        self._to_stdout = json_name == _STDOUT
        to_file = json_name is not None and not self._to_stdout
        self._json = Target("--json", Path(str(json_name))) if to_file else None
        self._kind = "" if plot is None else _picture_kind(plot)
        self._plot = None if plot is None else Target("--plot", plot)

    def write(self, found: BenchFound) -> None:
        """Write the results of a bench.

        Raises:
            UsageError: a file cannot be written.
        """
        text = json.dumps(found.document, indent=2)
        if self._json is not None:
            self._json.write(lambda path: _write_text(path, text + "\n"))
        if self._plot is not None and (draw := found.draw) is not None:
            self._plot.write(lambda path: draw(path, self._kind))
        if self._to_stdout:
            typer.echo(text)
        else:
            found.show(make_console())


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _picture_kind(plot: Path) -> str:
    kind = plot.suffix.lower()
    if kind not in PICTURES:
        raise UsageError(f"--plot {plot}: the name must end in one of {', '.join(PICTURES)}")
    return kind
