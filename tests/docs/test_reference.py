"""docs/reference/ is what the code says: each page is current, and has every name."""

import inspect
import re
import runpy
from typing import get_args, get_type_hints

import msgspec
import pytest
from test_pages import DOCS, blocks, loaded, page
from typer.main import get_command

from flstream import client, recipe, streaming, workflows
from flstream.cli.app import app
from flstream.job import job_keys
from flstream.recipe.arguments import RecipeArguments
from flstream.runs.summary import Summary
from flstream.streaming.api import DownloadOptions
from flstream.streaming.refs import OfferOptions

PAGES = runpy.run_path(str(DOCS / "make_reference.py"))["pages"]()
MODULES = {"client": client, "recipe": recipe, "streaming": streaming, "workflows": workflows}


def entries(name: str) -> set[str]:
    """The names that a page has a line for."""
    return set(re.findall(r"^- \*\*`(.*?)`\*\*", page(f"reference/{name}"), flags=re.MULTILINE))


def test_the_pages_are_current():
    written = {path.stem: path.read_text() for path in (DOCS / "reference").iterdir()}
    stale = {name for name in PAGES.keys() | written if PAGES.get(name) != written.get(name)}
    assert stale == set(), "run: make docs"


def test_every_key_of_the_job_file_has_its_values_and_meaning():
    for key in job_keys().values():
        entry = page("reference/job").partition(f"- **`{key.name}`** (")[2].partition("\n")[0]
        assert key.allowed in entry, key.name
        assert " ".join(key.meaning.split()) in entry, key.name


def test_the_example_of_the_job_file_means_what_it_says(tmp_path):
    [example] = blocks(page("reference/job"), "hocon")
    job = loaded(tmp_path, example)
    assert (job.clients.cohort_size, job.clients.min_updates) == (4, 3)


def test_every_command_has_its_arguments_and_options():
    text = page("reference/command-line")
    for command in get_command(app).commands.values():
        shown = re.search(rf"^## `flstream {command.name}\b.*?(?=^## |\Z)", text, re.M | re.S)[0]
        for each in command.params:
            names = each.opts if each.param_type_name == "option" else [each.metavar]
            [entry] = re.findall(rf"^- \*\*`{', '.join(names)}\b.*", shown, re.M)
            assert " ".join(each.help.split()) in entry


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_heading_and_says_something(name):
    module, text = MODULES[name], page(f"reference/{name}")
    names = getattr(module, "__all__", None) or [
        each
        for each, value in vars(module).items()
        if each[0] != "_" and not inspect.ismodule(value)
    ]
    assert len(names) > 15
    for each in names:
        section = text.partition(f"\n### `{each}`\n")[2].partition("\n### ")[0]
        assert re.search(r"^[A-Z].*\.$", section, re.M), each


def test_every_option_of_a_function_has_a_line():
    assert {*OfferOptions.__annotations__, *DownloadOptions.__annotations__} <= entries("streaming")
    assert {*RecipeArguments.__annotations__} <= entries("recipe")


def test_every_field_of_summary_json_has_a_line():
    def check(hint: object) -> None:
        for each in get_args(hint):
            check(each)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            checked.add(hint)
            assert [name for name in get_type_hints(hint) if name not in names] == [], hint
            for each in get_type_hints(hint).values():
                check(each)

    names, checked = entries("summary"), set()
    check(Summary)
    assert len(checked) >= 10
