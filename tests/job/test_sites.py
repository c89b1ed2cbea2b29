"""Sites with names and arguments of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flstream.client.code import train_code
from flstream.job import Job, JobError, load_job, render_job

Write = Callable[..., Path]

NAMED = 'rounds = 1, name = named, model.factory = "model:build", train.script = client.py\n'


def load(write: Write, text: str) -> Job:
    return load_job(write(text, NAMED))


def mistake(write: Write, text: str) -> str:
    with pytest.raises(JobError) as caught:
        load(write, text)
    [problem] = caught.value.problems
    return str(problem)


def test_sites_have_the_names_they_are_given_and_are_as_many(write: Write) -> None:
    clients = load(write, "clients.names = [ward, clinic, lab-2]").clients
    assert (clients.count, clients.workers) == (3, 3)
    assert clients.site_names == clients.worker_names == ["ward", "clinic", "lab-2"]
    assert load(write, "clients { names = [a, b], parallel = 1 }").clients.worker_names == [
        "worker-1"
    ]


def test_a_file_may_say_true_false_and_null_and_is_stripped(write: Write, folder: Path) -> None:
    (folder / "sites.csv").write_text("site, lr ,quiet\na, 0.10 ,true\nb,null, false\n")
    clients = load(write, 'clients { names = [a, b], args = "sites.csv" }').clients
    assert clients.args == {"a": {"lr": "0.10", "quiet": True}, "b": {"lr": None, "quiet": False}}
    (folder / "sites.csv").write_text("site,lr,lr\na,1,2\n")
    found = mistake(write, 'clients { names = [a], args = "sites.csv" }')
    assert "sites.csv has the column lr twice" in found


MISTAKES = {
    "clients.names = [ward, ward]": "ward is in it twice",
    "clients.names = []": "write [ward, clinic]",
    'clients.names = ["a/b"]': "'a/b' is no such name",
    'clients.names = [".."]': ".. is the name of a process of the run",
    "clients.names = [server]": "server is the name of a process of the run",
    "clients.names = [worker-3]": "worker-3 is the name of a process of the run",
    "clients { names = [a, b], count = 3 }": (
        "clients.count: given 3; must be the number of clients.names, which is 2"
    ),
    "clients.parallel = 1": (
        "clients.count: missing; must be a whole number from 1 to 1000000, unless clients.names is"
    ),
    "clients { names = [ward, lab], args { wrd { x = 1 } } }": (
        "clients.args: given wrd; must be sites of the job, which are ward to lab; did you mean"
    ),
    "clients { count = 2, args { site-2 = 3 } }": "clients.args.site-2: given 3; must be a section",
    "clients { count = 2, args = none.csv }": "none.csv cannot be read",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_what_is_wrong_with_sites_is_named(write: Write, text: str) -> None:
    assert MISTAKES[text] in mistake(write, text)


def test_a_sites_arguments_follow_those_of_all_or_take_their_place(
    write: Write, folder: Path
) -> None:
    sites = 'names = [a, "b.c"], args { a { data = "a.csv", fast = true }, "b.c" { lr = 2 } }'
    job = load(write, f"clients {{ {sites} }}, train.args {{ lr = 1, fast = false }}")
    words = train_code(job.train).words
    assert words(job.clients.args["a"]) == ["--lr", "1", "--fast", "--data", "a.csv"]
    assert words(job.clients.args["b.c"]) == ["--lr", "2"]
    (folder / "resolved.conf").write_text(render_job(job))
    assert load_job(folder / "resolved.conf") == job
    text = load(write, f"clients {{ {sites} }}, train.args = \"-v --name 'x y'\"")
    words = train_code(text.train).words
    assert words(text.clients.args["b.c"]) == ["-v", "--name", "x y", "--lr", "2"]


def test_the_arguments_of_sites_may_be_a_table(write: Write, folder: Path) -> None:
    (folder / "sites.csv").write_text("site,data,note\na,a.csv,\nb,b.csv,slow one\n")
    job = load(write, "clients { names = [a, b], args = sites.csv }")
    assert job.clients.args == {
        "a": {"data": "a.csv"},
        "b": {"data": "b.csv", "note": "slow one"},
    }
    (folder / "resolved.conf").write_text(render_job(job))
    assert load_job(folder / "resolved.conf") == job
    (folder / "sites.csv").write_text("site,data\na\n")
    assert "line 2, has 1 columns instead of 2" in mistake(
        write, "clients { names = [a, b], args = sites.csv }"
    )
