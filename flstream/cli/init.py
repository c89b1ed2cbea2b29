"""``flstream init``: create a job from a template, or from NVFlare's job folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flstream.errors import UsageError

TEMPLATES = {
    "script": "a training loop in torch; its data are made up, needs nothing",
    "learner": "a learner class in NumPy: 100 sites in two processes",
    "digits": "handwritten digits, unevenly shared; needs scikit-learn",
    "byzantine": "digits, where some sites attack; needs scikit-learn",
    "gpt2": "GPT-2 with TRL, whole or LoRA; needs 'flstream[hf,tensorboard]'",
}
"""Descriptions of the templates, by the name of their folder in jobs/."""

_DEFAULT = "script"
_NAMELESS = "give the new folder a NAME: flstream init NAME"
_FOLDERS = Path(__file__).parents[1] / "templates"  # a link to jobs/ in a checkout


def _list(wanted: bool) -> None:
    if wanted:
        for name, description in TEMPLATES.items():
            typer.echo(f"{name:<11}{description}")
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
            autocompletion=lambda: list(TEMPLATES.items()),
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
    """Write a new job that runs at once: job.conf, client.py and model.py.

    The folder must be new, or empty.

    With --from-nvflare, job.conf is what the folder's configurations become, its code is copied
    beside it, and each setting that is not taken is listed, with the reason.
    """
    folder = None if name is None else _job_folder(name)
    if from_nvflare is not None:
        if template is not None:
            raise UsageError("--template and --from-nvflare: give one of the two")
        _convert(from_nvflare, folder)
        return
    if folder is None:
        raise UsageError(_NAMELESS)
    template = template or _DEFAULT
    if template not in TEMPLATES:
        raise UsageError(
            f"--template {template}: there is no such template; known are {', '.join(TEMPLATES)}"
        )
    files = _copy(template, folder)
    typer.echo(f"{folder} has {', '.join(files)}; next:")
    _, _, needs = TEMPLATES[template].partition("; needs ")
    if needs:
        typer.echo(f"  {f'pip install {needs}':<28}  what it imports, if you have it not")
    _print_next(folder)


def _job_folder(name: str) -> Path:
    """Return the path of a new job's folder, which a job can be named after."""
    from pydantic import TypeAdapter, ValidationError

    from flstream.job import Job

    if not name:  # which as a path would be the working folder
        raise UsageError(_NAMELESS)
    rule = TypeAdapter(Annotated[str, *Job.model_fields["name"].metadata])
    try:
        rule.validate_python(Path(name).absolute().name)
    except ValidationError as error:
        raise UsageError(
            f"a job cannot be named after the folder {name}: a name has at most 100 letters, "
            "digits, . _ and -, a letter or digit first"
        ) from error
    return Path(name)


def _copy(template: str, folder: Path) -> list[str]:
    """Copy the files of a template into a new or empty folder, and return their names."""
    sources = sorted(path for path in (_FOLDERS / template).iterdir() if path.is_file())
    name = folder.absolute().name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; name a new folder")
        for source in sources:
            text = source.read_text(encoding="utf-8").replace(f"jobs/{template}", str(folder))
            text = text.replace(f"\nname = {template}\n", f'\nname = "{name}"\n')
            text = text.replace(f'name="{template}"', f'name="{name}"')  # of a recipe
            (folder / source.name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
    return [source.name for source in sources]


def _convert(source: Path, folder: Path | None) -> None:
    """Convert a job folder of NVFlare, and print the settings that were not taken."""
    from flstream.recipe.nvflare import convert, open_problems, write_job
    from flstream.text import printable

    conversion = convert(source, None if folder is None else folder.absolute().name)
    folder = folder or Path(conversion.name)
    written = write_job(conversion, folder)
    for file, notes in conversion.notes.items():
        typer.echo("\n".join([file, *(f"  {note}" for note in notes)]))
    if conversion.notes:
        count = sum(map(len, conversion.notes.values()))
        typer.echo(f"\nnot taken: {count}, which job.conf lists, too.")
    problems = open_problems(folder)
    next_step = "before it can run, job.conf needs:" if problems else "next:"
    files = ", ".join(map(printable, written))
    typer.echo(f"\n{printable(str(folder))} has {files}; {next_step}")
    for problem in problems:
        typer.echo(f"  {printable(str(problem))}")
    if not problems:
        _print_next(folder)


def _print_next(folder: Path) -> None:
    from shlex import quote

    for command, purpose in (("validate", "what it will do and need"), ("simulate", "run it")):
        typer.echo(f"  {f'flstream {command} {quote(str(folder))}':<28}  {purpose}")
