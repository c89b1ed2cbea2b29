"""`flstream init` writes jobs that run at once, and writes over nothing."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli_support import Flstream
from nightly_cases import first_and_nightly

from flstream.cli import init as command
from flstream.cli.init import TEMPLATES, _template_files
from flstream.job import load_job

ROOT = Path(__file__).parents[2]
FILES = {"README.md", "client.py", "job.conf", "model.py"}
LLM_FILES = {"corpus.py", "job.py", "requirements.txt", "trainer.py"}


def files_of(template: str) -> set[str]:
    return FILES | LLM_FILES if template == "llm" else FILES


# The others are the jobs of that name in jobs/, which the tests of those run.
@first_and_nightly(("template", "least"), [("script", 0.95), ("learner", 0.95)])
def test_a_new_job_runs_at_once_and_learns(
    flstream: Flstream, tmp_path: Path, template: str, least: float
) -> None:
    done = flstream("init", "my-job", "--template", template)
    assert (done.returncode, done.stderr) == (0, "")
    assert "flstream simulate my-job" in done.stdout
    done = flstream("simulate", "my-job", "--json", "--run-dir", "run")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["job"]) == ("finished", "my-job")
    assert summary["warnings"] == []
    assert summary["best"]["value"] >= least
    assert {path.name for path in tmp_path.iterdir()} == {"my-job", "run"}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_the_shipped_job_under_a_new_name(
    flstream_here: Flstream, tmp_path: Path, template: str
) -> None:
    flstream_here("init", "sub/new", "--template", template)
    written = tmp_path / "sub" / "new"
    shipped = ROOT / "jobs" / TEMPLATES[template].job
    assert {path.name for path in written.iterdir()} == files_of(template)
    for path in _template_files(TEMPLATES[template]):
        name = path.name
        if path.suffix == ".py" and name != "job.py":  # which has the job's name in it
            assert (written / name).read_bytes() == path.read_bytes()
        assert not (written / name).is_symlink()
    for path in written.iterdir():
        assert not re.search(rf"jobs/{shipped.name}\b", path.read_text())
        assert not re.search(rf"name ?= ?\"?{shipped.name}\b", path.read_text())
    assert "flstream simulate sub/new" in (written / "README.md").read_text()
    if template == "llm" and find_spec("trl") is None:
        return  # its libraries are imported ahead, and a job file is refused without them
    job = load_job(written / "job.conf")
    assert job == load_job(
        shipped / "job.conf",
        [
            "name=new",
            f"model.factory={job.model.factory}",
            *([f"train.script={job.train.script}"] if job.train.script else []),
            *([f"train.learner={job.train.learner}"] if job.train.learner else []),
        ],
    )


def test_a_folder_that_is_empty_is_filled(flstream_here: Flstream, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert flstream_here("init", "mine").returncode == 0
    assert {path.name for path in (tmp_path / "mine").iterdir()} == FILES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("full",), "full is not empty; name a new folder"),
        (("file",), "file cannot be written: File exists"),
        (("file/below",), "file/below cannot be written: Not a directory"),
        (("new", "--template", "scirpt"), "known are script, learner, digits, "),
        (("my job",), 'a job cannot be named after the folder my job: given "my job"; must be at'),
    ],
)
def test_what_cannot_be_written_is_refused(
    flstream_here: Flstream, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    done = flstream_here("init", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "notes.txt", "file"}


def test_a_template_that_needs_what_is_not_installed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_has_module", lambda name: False)
    for template in ("script", "digits"):
        command.init(tmp_path / template, template)
        hint = "pip install scikit-learn" in capsys.readouterr().out
        assert hint == (template == "digits")
        assert ("pip install" in (tmp_path / template / "README.md").read_text()) == hint


def test_the_templates_are_listed(flstream_here: Flstream, tmp_path: Path) -> None:
    done = flstream_here("init", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(TEMPLATES)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not any(tmp_path.iterdir())


def test_every_template_is_a_job_with_all_files() -> None:
    folder = ROOT / "flstream" / "templates"
    # A link, so that there is one of each.
    assert folder.readlink() == Path("../jobs")
    for name in TEMPLATES:
        assert {path.name for path in _template_files(TEMPLATES[name])} == files_of(name)


def test_an_empty_name_is_no_name(flstream_here: Flstream, tmp_path: Path) -> None:
    done = flstream_here("init", "")
    assert (done.returncode, done.stderr) == (
        2,
        "error: give the new folder a NAME: flstream init NAME\n",
    )
    assert not any(tmp_path.iterdir())
