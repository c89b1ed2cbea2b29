"""Pages: put together from templates, with all that they hold escaped, and written whole."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import flstream
from flstream.errors import SimulationError, UsageError
from flstream.report.charts.style import COLORS
from flstream.simulator.files.small_files import write_whole

_GENERATOR = "flstream report"
# Where a page of ours says that it is one.
_MARK = f'<meta name="generator" content="{_GENERATOR}">'
_MARK_BYTES = 512

# Behind what stands out on the page, beside the colours of the charts.
_WASH = ("#f4f5f7", "#1d2329")


def render(template: str, context: Mapping[str, Any]) -> str:
    """A page from its template. All but the drawings in it is escaped."""
    environment = _environment()
    style = environment.get_template("style.css").render(light=_palette(0), dark=_palette(1))
    return environment.get_template(template).render(
        context,
        style=Markup(style),
        generator=_GENERATOR,
        version=flstream.__version__,
        made=time.strftime("%Y-%m-%d at %H:%M UTC", time.gmtime()),
    )


def check_replaceable(path: Path) -> None:
    """Make sure that nothing is lost if a page is written to a file.

    Raises:
        UsageError: what is there is no page of ours.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_MARK_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if head and _MARK.encode() not in head:
        raise UsageError(
            f"{path} was not made by flstream report, so it is left alone; "
            "name another file with --output"
        )


def write_page(path: Path, text: str) -> None:
    """Write a page such that it is either whole or not there. An earlier one is replaced.

    Raises:
        UsageError: what is there is no page of ours.
        SimulationError: the disk refused it.
    """
    check_replaceable(path)
    try:
        write_whole(path, text)
    except OSError as error:
        raise SimulationError(
            f"the report {path} cannot be written: {error.strerror}; put that right, and make it "
            "with flstream report"
        ) from error


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _palette(index: int) -> str:
    values = [(color.name, (color.light, color.dark)[index]) for color in COLORS.values()]
    return " ".join(f"--{name}: {value};" for name, value in [*values, ("wash", _WASH[index])])
