"""What a job trains with: a script or a learner, exactly one of them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flstream.client.code import LearnerCode, ScriptCode, train_code
from flstream.job import JobError, load_job, render_job
from flstream.job.code import find_named

Write = Callable[..., Path]

NO_CODE = 'name = a, rounds = 1, clients.count = 1, model.factory = "model:build"\n'


def mistake(path: Path) -> str:
    with pytest.raises(JobError) as caught:
        load_job(path)
    [problem] = caught.value.problems
    return str(problem)


@pytest.fixture(autouse=True)
def learner(folder: Path) -> Path:
    path = folder / "mine.py"
    path.write_text("class Digits:\n    def __init__(self, lr):\n        self.lr = lr\n")
    return path


def test_a_script_gets_its_arguments_as_a_command_line(write: Write, folder: Path) -> None:
    job = load_job(write('train.args { lr = 0.5, name = "a b", sizes = [1, 2] }'))
    arguments = ["--lr", "0.5", "--name", "a b", "--sizes", "1", "2"]
    code = train_code(job.train)
    assert isinstance(code, ScriptCode)
    assert (code.path, code.words({})) == (folder / "client.py", arguments)
    assert job.train.source == folder / "client.py"


def test_flags_are_given_where_they_are_true_and_nulls_are_left_out(write: Write) -> None:
    job = load_job(write("train.args { verbose = true, quiet = false, seed = null, of = [a, b] }"))
    assert train_code(job.train).words({}) == ["--verbose", "--of", "a", "b"]


def test_arguments_may_be_one_text_as_on_a_shell(write: Write, folder: Path) -> None:
    job = load_job(write("""train.args = "--lr 0.5 --name 'a b' -v" """))
    assert train_code(job.train).words({}) == ["--lr", "0.5", "--name", "a b", "-v"]
    (folder / "resolved.conf").write_text(render_job(job))
    assert load_job(folder / "resolved.conf") == job
    assert mistake(write("""train.args = "--name 'a" """)).startswith('train.args: given "--name')


def test_a_learner_takes_arguments_by_name_alone(write: Write) -> None:
    problem = mistake(write('train { learner = "mine:Digits", args = "--lr 1" }', NO_CODE))
    assert "must be a section of keys and plain values, for a learner" in problem


@pytest.mark.parametrize("named", ["mine:Digits", "./mine.py:Digits"])
def test_a_learner_is_found_beside_the_job_file(write: Write, learner: Path, named: str) -> None:
    job = load_job(write(f'train {{ learner = "{named}", args.lr = 0.5 }}', NO_CODE))
    assert train_code(job.train) == LearnerCode(f"{learner}:Digits", {"lr": 0.5})
    assert job.train.source == learner
    resolved = learner.with_name("resolved.conf")
    resolved.write_text(render_job(job))
    assert load_job(resolved) == job


def test_an_installed_learner_keeps_its_name(write: Write) -> None:
    job = load_job(write('train.learner = "flstream.client:Learner"', NO_CODE))
    assert job.train.learner == "flstream.client:Learner"
    assert job.train.source is None


def test_one_of_the_two_has_to_be_given(write: Write) -> None:
    assert mistake(write("", NO_CODE)) == (
        "train.script: missing; must be the path of an existing Python file, "
        "unless train.learner is given"
    )


def test_only_one_of_the_two_may_be_given(write: Write) -> None:
    assert mistake(write('train.learner = "mine:Digits"')) == (
        "train.learner: given beside train.script; must be the only one of the two; "
        "take the learner with train.script = null"
    )
    assert load_job(write('train { learner = "mine:Digits", script = null }')).train.script is None


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("mine:Digit", "must be the name of a Class at the top level of"),
        ("mine:Digit", "did you mean Digits?"),
        ("mine", 'given "mine"; must be module:Class or path/to/file.py:Class'),
        ("nowhere_at_all:Digits", "looked for"),
    ],
)
def test_a_learner_that_cannot_be_found_is_a_mistake(write: Write, named: str, said: str) -> None:
    line = mistake(write(f'train.learner = "{named}"', NO_CODE))
    assert line.startswith("train.learner: ")
    assert said in line


def test_what_a_file_needs_from_beside_it_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "beside_it.py").write_text("VALUE = 3\n")
    (folder / "needs.py").write_text("from beside_it import VALUE\nclass Mine:\n    a = VALUE\n")
    assert find_named(f"{folder}/needs.py:Mine").a == 3
    assert find_named(f"{folder}/needs.py:Other") is None
    assert find_named("pathlib:Path") is Path
    for name in ("needs", "beside_it"):
        del sys.modules[name]


def test_a_value_that_begins_with_a_dash_is_no_option(write: Write) -> None:
    job = load_job(write('train.args { shift = -1.5e-7, title = "-x", of = [1, 2] }'))
    assert train_code(job.train).words({}) == ["--shift=-1.5e-07", "--title=-x", "--of", "1", "2"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("[json, os.path]", None),
        ("json", "must be a list of names of modules"),
        ("[3]", "must be a list of names of modules"),
        ("[nonexistent.part]", "there is no installed module nonexistent"),
    ],
)
def test_libraries_to_preload_are_installed_modules(
    write: Write, given: str, reason: str | None
) -> None:
    path = write(f"train.preload = {given}")
    if reason is None:
        assert load_job(path).train.preload == ["json", "os.path"]
    else:
        assert reason in mistake(path)
