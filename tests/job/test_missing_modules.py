"""Modules that training code imports are looked for before a run, and none of it is run."""

import pytest

from flstream.job.imports import missing_modules


@pytest.fixture
def problems(load, folder):
    """Return a function that writes a script, and returns what its imports lack."""

    def problems(script, *overrides):
        (folder / "client.py").write_text("class Mine: ...")
        (folder / "model.py").write_text("def build(): ...")
        job = load("", *overrides)
        (folder / "client.py").write_text(script)
        return list(map(str, missing_modules(job)))

    return problems


@pytest.mark.parametrize(
    "script",
    [
        "import os.path, torch, model\nfrom . import x\nfrom flstream.client import init\n1/0",
        "try:\n    import nosuch\nexcept ImportError:\n    nosuch = None",
        "import flstream.client as flare\nflare.no_such_name()",
    ],
)
def test_what_imports_only_what_is_there_has_no_problems_and_is_not_run(problems, script):
    assert problems(script) == []


@pytest.mark.parametrize(
    ("script", "overrides", "start", "words"),
    [
        ("import nosuch.thing", (), "train.script: client.py line 1 imports", "no module nosuch"),
        ("import nvflare.client", (), "train.script", "write import flstream.client as"),
        (
            "import nosuch\nclass Mine: ...",
            ("train.learner=client:Mine", "train.script=null"),
            "train.learner: client.py line 1",
            "install it",
        ),
    ],
)
def test_a_module_that_is_not_installed_is_named_with_its_line(
    problems, script, overrides, start, words
):
    [problem] = problems(script, *overrides)
    assert problem.startswith(start)
    assert words in problem


def test_names_of_the_alias_are_there(problems):
    assert problems("import nvflare.client", "train.alias=nvflare") == []
