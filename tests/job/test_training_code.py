"""What a job trains with: a script, a command or a learner, and the arguments of its sites."""

import sys

import pytest

from flstream.errors import UsageError
from flstream.job import code
from flstream.worker.run_script import script_words

LEARNS = 'name = a, rounds = 1, clients.count = 1, model.factory = "model:build"\n'
TWO = 'clients { count = null, names = [a, "b.c"], args { a { data = "a.csv", fast = true }, '


@pytest.fixture(autouse=True)
def learner(folder):
    path = folder / "mine.py"
    path.write_text("class Digits:\n    def __init__(self, lr):\n        self.lr = lr\n")
    return path


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ('{ lr = 0.5, name = "a b", of = [1, 2] }', "--lr|0.5|--name|a b|--of|1|2"),
        ("{ loud = true, quiet = false, seed = null, of = [a, b] }", "--loud|--of|a|b"),
        ('{ shift = -1.5e-7, title = "-x" }', "--shift=-1.5e-07|--title=-x"),
        ("\"--lr 0.5 --name 'a b' -v\"", "--lr|0.5|--name|a b|-v"),
    ],
)
def test_a_script_gets_its_arguments_as_a_command_line(load, reloaded, folder, args, words):
    job = load(f"train.args = {args}")
    assert job.train.script == folder / "client.py"
    assert script_words(job, "site-1") == words.split("|")
    assert reloaded(job) == job


def test_a_sites_arguments_follow_those_of_all_or_take_their_place(load):
    job = load(f'{TWO} "b.c" {{ lr = 2 }} }} }}, train.args {{ lr = 1, fast = false }}')
    assert script_words(job, "a") == ["--lr", "1", "--fast", "--data", "a.csv"]
    assert script_words(job, "b.c") == ["--lr", "2"]
    assert job.clients.site_names == job.clients.worker_names == ["a", "b.c"]
    assert load(TWO + "} }", "clients.parallel=1").clients.worker_names == ["worker-1"]


def test_the_arguments_of_sites_may_be_a_table(load, reloaded, mistakes, folder):
    named = "clients { count = null, names = [a, b], args = sites.csv }"

    def table(text):
        (folder / "sites.csv").write_text(text)

    table("site, lr ,quiet,note\na, 0.10 ,true,\nb,null, false,slow one\n")
    job = load(named)
    assert job.clients.args == {
        "a": {"lr": "0.10", "quiet": True},
        "b": {"lr": None, "quiet": False, "note": "slow one"},
    }
    assert reloaded(job) == job
    for text, words in [
        ("site,lr,lr\na,1,2\n", "the columns are site, lr, lr; name each once"),
        ("site,data\na\n", "line 2: 1 columns instead of 2"),
    ]:
        table(text)
        [problem] = mistakes(named)
        assert problem.key == "clients.args"
        assert words in str(problem)


@pytest.mark.parametrize("named", ["mine:Digits", "./mine.py:Digits"])
def test_a_learner_is_found_beside_the_job_file(load, reloaded, learner, named):
    job = load(f'train {{ learner = "{named}", args.lr = 0.5 }}', base=LEARNS)
    assert (job.train.learner, job.train.args) == (f"{learner}:Digits", {"lr": 0.5})
    assert job.train.source == learner
    assert reloaded(job) == job
    installed = load('train.learner = "flstream.client:Learner"', base=LEARNS)
    assert installed.train.learner == "flstream.client:Learner"
    assert load(f'train {{ learner = "{named}", script = null }}').train.script is None


@pytest.mark.parametrize(
    ("train", "key", "words"),
    [
        ('learner = "nowhere_at_all:Digits"', "train.learner", "looked for"),
        ('learner = "mine:Digit"', "train.learner", "did you mean Digits?"),
        ('learner = "mine:Digits", args = "--lr 1"', "train.args", "for a learner"),
        ('learner = "mine:Digits", command = python', "train.command", "null beside train.learner"),
        (
            'learner = "mine:Digits", script = client.py',
            "train.learner",
            "the only one of train.script and",
        ),
    ],
)
def test_a_mistake_of_a_learner_is_named(mistakes, train, key, words):
    [problem] = mistakes(f"train {{ {train} }}", base=LEARNS)
    assert problem.key == key
    assert words in str(problem)


def test_what_a_file_needs_from_beside_it_is_found(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "beside_it.py").write_text("VALUE = 3\n")
    (folder / "needs.py").write_text("from beside_it import VALUE\nclass Mine:\n    a = VALUE\n")
    assert code.load(f"{folder}/needs.py:Mine").a == 3
    with pytest.raises(UsageError, match=r"has no 'Mines' at its top level; did you mean Mine\?"):
        code.load(f"{folder}/needs.py:Mines")
    for name in ("needs", "beside_it"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python -u -X 'dev'", "{python}|-u|-X|dev"),
        ("python3", "{python}"),
        ("start", "{folder}/here/start"),
        ("launch -n 2", "{folder}/there/launch|-n|2"),
        ("'bin/start it' -n 2", "{folder}/bin/start it|-n|2"),
    ],
)
def test_a_program_is_beside_the_interpreter_on_the_path_or_beside_the_job_file(
    load, folder, monkeypatch, command, words
):
    for name in ("here/start", "there/start", "there/launch", "bin/start it"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "here" / "python"))
    monkeypatch.setenv("PATH", str(folder / "there"))
    due = words.format(python=sys.executable, folder=folder).split("|")
    assert load(f'train.command = "{command}"').train.command_words == due
