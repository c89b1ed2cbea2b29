"""``flstream init``: create a new job from a template, or from a job folder of NVFlare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from flstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console


class Template(NamedTuple):
    """A job to begin with.

    Attributes:
        job: Name of the job's folder in templates, which is a link to jobs in a checkout.
        what: Description.
        module: Module that it imports beyond what flstream does; empty for none.
        install: What to install for that.
    """

    job: str
    what: str
    module: str = ""
    install: str = ""


# By name, in the order of the listing.
TEMPLATES = {
    "script": Template("script", "a training loop in torch; its data are made up, needs nothing"),
    "learner": Template("learner", "a learner class in NumPy: 100 sites in two processes"),
    "digits": Template("digits", "handwritten digits, unevenly shared", "sklearn", "scikit-learn"),
    "byzantine": Template(
        "byzantine", "digits, where some sites attack", "sklearn", "scikit-learn"
    ),
    "llm": Template(
        "gpt2", "a small GPT-2 with TRL, or a large one, or LoRA", "trl", "'flstream[hf]'"
    ),
}
_DEFAULT = "script"


def _complete() -> list[tuple[str, str]]:
    return [(name, template.what) for name, template in TEMPLATES.items()]


def _list(wanted: bool) -> None:
    if wanted:
        for name, template in TEMPLATES.items():
            needs = f"; needs {template.install}" if template.install else ""
            typer.echo(f"{name:<11}{template.what}{needs}")
        raise typer.Exit


def init(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The new folder. Its last part becomes the job's name.",
            show_default=False,
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE",
            help=f"What to begin with: {', '.join(TEMPLATES)}. Without it, {_DEFAULT}.",
            autocompletion=_complete,
        ),
    ] = None,
    from_nvflare: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Begin with a job folder of NVFlare, or a file of one. NAME may be left out.",
        ),
    ] = None,
    list_templates: Annotated[
        bool,
        typer.Option(
            "--list", callback=_list, is_eager=True, help="List the templates, and write nothing."
        ),
    ] = False,
) -> None:
    """Write a new job that runs at once: job.conf, client.py, model.py and a README.

    The folder must be new, or empty.

    With --from-nvflare, job.conf is what the folder's configurations become, its code is copied
    beside it, and each setting that is not taken is listed, with the reason.
    """
    from flstream.report.console import make_console

    if from_nvflare is not None:
        if template is not None:
            raise UsageError("--template and --from-nvflare: give one of the two")
        _convert(from_nvflare, None if name is None else _folder(name))
        return
    folder = _folder(name or "")
    template = template or _DEFAULT
    if template not in TEMPLATES:
        raise UsageError(
            f"--template {template}: there is no such template; known are {', '.join(TEMPLATES)}"
        )
    chosen, shown = TEMPLATES[template], str(folder)
    written = _write(folder, _template_files(chosen), _filler(folder, chosen))
    console = make_console()
    console.out(f"{shown} has {', '.join(written)}; next:", highlight=False)
    if chosen.module and not _has_module(chosen.module):
        console.out(f"  {f'pip install {chosen.install}':<28}  what it imports", highlight=False)
    _print_next(console, shown)
    console.out(f"Then read {shown}/README.md, and change what you like.", highlight=False)


def _folder(name: str) -> Path:
    if not name:  # which as a path would be the working folder
        raise UsageError("give the new folder a NAME: flstream init NAME")
    return Path(name)


def _convert(source: Path, name: Path | None) -> None:
    """Write the job that a job folder of NVFlare becomes, and print what was not taken.

    Args:
        source: path of the job folder, or of a configuration.
        name: the new folder; None to name it as the job.
    """
    from flstream.recipe.nvflare import convert, open_problems, write_job
    from flstream.report.console import make_console
    from flstream.text import printable

    conversion = convert(source, None if name is None else _check_name(name))
    folder = Path(conversion.name) if name is None else name
    written = write_job(conversion, folder)
    problems = open_problems(folder)
    shown = printable(str(folder))
    console = make_console()
    for file, notes in conversion.notes.items():
        console.out(file, highlight=False)
        for note in notes:
            console.out(f"  {note}", highlight=False)
    if conversion.notes:
        count = sum(map(len, conversion.notes.values()))
        console.out(f"\nnot taken: {count}, which job.conf lists, too.", highlight=False)
    next_step = "before it can run, job.conf needs:" if problems else "next:"
    console.out(f"\n{shown} has {', '.join(map(printable, written))}; {next_step}", highlight=False)
    for problem in problems:
        console.out(f"  {printable(str(problem))}", highlight=False)
    if not problems:
        _print_next(console, shown)


def _print_next(console: Console, job: str) -> None:
    from shlex import quote

    for command, what in (("validate", "what it will do and need"), ("simulate", "run it")):
        console.out(f"  {f'flstream {command} {quote(job)}':<28}  {what}", highlight=False)


def _template_files(template: Template) -> list[Path]:
    """Return the files of a template."""
    folder = Path(__file__).parents[1] / "templates" / template.job
    # And no __pycache__ of a template whose module was imported.
    return sorted(path for path in folder.iterdir() if path.is_file())


def _filler(folder: Path, template: Template) -> Callable[[str], str]:
    """Return a function that puts a job's name and path into the text of a template file.

    Args:
        folder: the new job's folder.
        template: the template.

    Raises:
        UsageError: the folder's name is not a valid job name.
    """
    import re

    name, job = _check_name(folder), template.job

    def fill(text: str) -> str:
        text = re.sub(rf"^name = {job}$", f"name = {_quoted(name)}", text, flags=re.MULTILINE)
        text = re.sub(rf"^# {job}$", f"# {name}", text, flags=re.MULTILINE)
        text = text.replace(f'name="{job}"', f'name="{name}"')  # of a recipe
        return text.replace(f"jobs/{job}/job.conf", str(folder)).replace(f"jobs/{job}", str(folder))

    return fill


def _check_name(folder: Path) -> str:
    """Return the name that a job has from its folder.

    Raises:
        UsageError: the folder's name is not a valid job name.
    """
    from flstream.job import job_keys
    from flstream.job.problems import RefusedValueError

    name, key = folder.absolute().name, job_keys()["name"]
    try:
        key.parse(name, folder)
    except RefusedValueError as error:
        [problem] = error.problems
        raise UsageError(f"a job cannot be named after the folder {folder}: {problem}") from error
    return name


def _write(folder: Path, files: list[Path], fill: Callable[[str], str]) -> list[str]:
    """Write a template's files into a new or empty folder.

    Args:
        folder: the new job's folder.
        files: paths of the template's files.
        fill: maps the text of a template file to that of the new file.

    Returns:
        The names of the files, sorted.

    Raises:
        UsageError: the folder is not empty or cannot be written; no file is left in it then.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; name a new folder")
        for path in files:
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


def _has_module(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _quoted(name: str) -> str:
    from flstream.job.values import render_value

    return name if name.isalpha() else render_value(name)
