"""Rendering of pages from templates, with escaping, and atomic writing of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

import flstream
from flstream.errors import SimulationError, UsageError
from flstream.runs.small_files import write_whole

_GENERATOR = "flstream report"
# Marks a page as written by flstream.
_MARK = f'<meta name="generator" content="{_GENERATOR}">'
_MARK_BYTES = 512


def render(template: str, context: Mapping[str, Any]) -> str:
    """Render a page, or a part of someone else's, as HTML with everything escaped.

    Args:
        template: file name of the template.
        context: variables of the template.
    """
    return (
        _environment()
        .get_template(template)
        .render(
            context,
            generator=_GENERATOR,
            version=flstream.__version__,
            made=time.strftime("%Y-%m-%d at %H:%M UTC", time.gmtime()),
        )
    )


def check_replaceable(path: Path) -> None:
    """Check that a file does not exist or is a page written by flstream.

    Raises:
        UsageError: the file is something else, or cannot be read.
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
    """Write a page atomically. An earlier page is replaced.

    Args:
        path: path of the page.
        text: the page as HTML.

    Raises:
        UsageError: an existing file is not a page of flstream.
        SimulationError: the page cannot be written.
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
