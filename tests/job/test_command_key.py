"""train.command: a launcher that there is, for scripts of clients with a process each."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flstream.client.code import ScriptCode, train_code
from flstream.job import Job, JobError, load_job, render_job

Write = Callable[..., Path]


def mistake(path: Path) -> str:
    with pytest.raises(JobError) as caught:
        load_job(path)
    [problem] = caught.value.problems
    return str(problem)


def words(job: Job) -> list[str]:
    code = train_code(job.train)
    assert isinstance(code, ScriptCode)
    assert code.command is not None
    return list(code.command)


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_without_one_the_script_runs_in_the_workers_process(write: Write) -> None:
    job = load_job(write(""))
    assert job.train.command is None
    code = train_code(job.train)
    assert isinstance(code, ScriptCode)
    assert code.command is None


@pytest.mark.parametrize("name", ["python", "python3"])
def test_python_is_the_interpreter_that_runs_flstream(write: Write, name: str) -> None:
    job = load_job(write(f"train.command = \"{name} -u -X 'dev'\""))
    assert words(job) == [sys.executable, "-u", "-X", "dev"]
    assert render_job(job).count(f"command = \"{name} -u -X 'dev'\"") == 1


def test_a_program_is_looked_for_beside_the_interpreter_and_then_on_the_path(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    first, _ = program(here / "start"), program(there / "start")
    other = program(there / "launch")
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    monkeypatch.setenv("PATH", str(there))
    assert words(load_job(write("train.command = start"))) == [str(first)]
    assert words(load_job(write('train.command = "launch -n 2"'))) == [str(other), "-n", "2"]


def test_a_path_is_relative_to_the_job_file(write: Write, folder: Path) -> None:
    program(folder / "bin" / "start it")
    job = load_job(write("""train.command = "'bin/start it' -n 2" """))
    assert words(job) == [f"{folder}/bin/start it", "-n", "2"]
    (folder / "resolved.conf").write_text(render_job(job))
    assert load_job(folder / "resolved.conf") == job


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ('""', "must be a launcher and its options, such as torchrun --nproc_per_node=2"),
        ("3", "must be a launcher and its options"),
        ("[torchrun]", "must be a launcher and its options"),
        ('"torchrun \'a"', "must be quoted as on a shell; No closing quotation"),
        ("trochrun", f"there is no program trochrun in {Path(sys.executable).parent} or on PATH"),
        ("./none", "there is no program /"),
        ("./plain", "there is no program /"),
        ("./bin", "there is no program /"),
    ],
)
def test_what_cannot_be_started_is_a_mistake(
    write: Write, folder: Path, given: str, reason: str
) -> None:
    program(folder / "plain", 0o644)
    (folder / "bin").mkdir()
    problem = mistake(write(f"train.command = {given}"))
    assert problem.startswith("train.command: given ")
    assert reason in problem


def test_a_learner_has_no_command(write: Write, folder: Path) -> None:
    (folder / "mine.py").write_text("class Digits: ...\n")
    base = 'name = a, rounds = 1, clients.count = 1, model.factory = "model:build"\n'
    path = write('train { learner = "mine:Digits", command = python }', base)
    assert mistake(path) == (
        'train.command: given "python"; must be null beside train.learner, as a command starts a '
        "script"
    )


@pytest.mark.parametrize("clients", ["count = 3, parallel = 2", "count = 40"])
def test_each_client_needs_a_process_of_its_own(write: Write, clients: str) -> None:
    problem = mistake(write(f"train.command = python, clients {{ {clients} }}"))
    count = clients.split()[2].rstrip(",")
    assert problem == (
        'train.command: given "python"; must be null where clients share processes; '
        f"set clients.parallel = {count}, or take fewer clients"
    )


def test_as_many_processes_as_clients_are_enough(write: Write) -> None:
    job = load_job(write("train.command = python, clients { count = 40, parallel = 40 }"))
    assert words(job) == [sys.executable]
