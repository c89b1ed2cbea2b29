"""``flstream init``: create a new job from a template."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

# Jobs in the folder templates, which is a link to jobs in a checkout. By name, in the order of
# the listing: a description, and whether the job needs scikit-learn.
TEMPLATES = {
    "script": ("a training loop in torch; its data are made up, so it needs nothing", False),
    "learner": ("a learner class in NumPy: 100 sites in two processes; needs nothing", False),
    "digits": ("handwritten digits, unevenly shared; needs scikit-learn", True),
    "exchange": ("no training: only moves a model, of whatever size", False),
}
_DEFAULT = "script"


def _complete() -> list[tuple[str, str]]:
    return [(name, what) for name, (what, _) in TEMPLATES.items()]


def _list(wanted: bool) -> None:
    if wanted:
        for name, (what, _) in TEMPLATES.items():
            typer.echo(f"{name:<10}{what}")
        raise typer.Exit


def init(
    name: Annotated[
        Path,
        typer.Argument(
            metavar="NAME",
            help="The new folder. Its last part becomes the job's name.",
            show_default=False,
        ),
    ],
    template: Annotated[
        str,
        typer.Option(
            metavar="TEMPLATE",
            help=f"What to begin with: {', '.join(TEMPLATES)}.",
            autocompletion=_complete,
        ),
    ] = _DEFAULT,
    list_templates: Annotated[
        bool,
        typer.Option(
            "--list", callback=_list, is_eager=True, help="List the templates, and write nothing."
        ),
    ] = False,
) -> None:
    """Write a new job that runs at once: job.conf, client.py, model.py and a README.

    The folder must be new, or empty.
    """
    from shlex import quote

    from flstream.report.console import make_console

    if template not in TEMPLATES:
        raise UsageError(
            f"--template {template}: there is no such template; known are {', '.join(TEMPLATES)}"
        )
    shown = str(name)
    written = _write(name, template, _filler(name, template))
    console = make_console()
    console.out(f"{shown} has {', '.join(written)}; next:", highlight=False)
    if TEMPLATES[template][1] and not _has_scikit_learn():
        console.out("  pip install scikit-learn      which this template's data come with")
    for command, what in (("validate", "what it will do and need"), ("simulate", "run it")):
        console.out(f"  {f'flstream {command} {quote(shown)}':<28}  {what}", highlight=False)
    console.out(f"Then read {shown}/README.md, and change what you like.", highlight=False)


def _filler(folder: Path, template: str) -> Callable[[str], str]:
    """Return a function that puts a job's name and path into the text of a template file.

    Args:
        folder: the new job's folder.
        template: name of the template.

    Raises:
        UsageError: the folder's name is not a valid job name.
    """
    import re

    from pydantic_core import PydanticCustomError

    from flstream.job import Problem, job_keys
    from flstream.job.problems import given

    name, rule = folder.absolute().name, job_keys()["name"].rule
    try:
        rule.parse(name, folder)
    except PydanticCustomError as error:
        problem = Problem("", given(name), rule.allowed)
        raise UsageError(f"a job cannot be named after the folder {folder}: {problem}") from error

    def fill(text: str) -> str:
        text = re.sub(rf"^name = {template}$", f"name = {_quoted(name)}", text, flags=re.MULTILINE)
        text = re.sub(rf"^# {template}$", f"# {name}", text, flags=re.MULTILINE)
        return text.replace(f"jobs/{template}/job.conf", str(folder)).replace(
            f"jobs/{template}", str(folder)
        )

    return fill


def _write(folder: Path, template: str, fill: Callable[[str], str]) -> list[str]:
    """Write a template's files into a new or empty folder.

    Args:
        folder: the new job's folder.
        template: name of the template.
        fill: maps the text of a template file to that of the new file.

    Returns:
        The names of the files, sorted.

    Raises:
        UsageError: the folder is not empty or cannot be written; no file is left in it then.
    """
    source = Path(__file__).parents[1] / "templates" / template
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; name a new folder")
        for path in sorted(source.iterdir()):
            if not path.is_file():
                continue  # __pycache__ of a template whose module was imported
            with (folder / path.name).open("x", encoding="utf-8") as file:
                written.append(folder / path.name)
                file.write(fill(path.read_text(encoding="utf-8")))
    except BaseException as error:
        for path in written:  # an incomplete job would make the next attempt fail
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
        raise
    return [path.name for path in written]


def _has_scikit_learn() -> bool:
    from importlib.util import find_spec

    return find_spec("sklearn") is not None


def _quoted(name: str) -> str:
    from flstream.job.values import render_value

    return name if name.isalpha() else render_value(name)
