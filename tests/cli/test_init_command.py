"""`flstream init` writes jobs that run at once, and writes over nothing."""

import ast
import json
import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from flstream.cli.init import TEMPLATES
from flstream.job import load_job

ROOT = Path(__file__).parents[2]
FILES = {"client.py", "job.conf", "model.py"}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_the_shipped_job_under_a_new_name(flstream_here, tmp_path, template):
    done = flstream_here("init", "sub/new", "--template", template)
    written, shipped = tmp_path / "sub" / "new", ROOT / "jobs" / template
    names = {path.name for path in written.iterdir()}
    more = {"gpt2": {"job.py", "lora.conf"}, "digits": {"evaluate.py"}}
    assert names == FILES | more.get(template, set())
    for name in names:
        assert not (written / name).is_symlink()
        if name in ("client.py", "model.py", "evaluate.py"):
            assert (written / name).read_bytes() == (shipped / name).read_bytes()
        text = (written / name).read_text()
        assert not re.search(rf"(jobs/|name ?= ?\"?){shipped.name}\b", text)
    needs = [text.partition("; needs ")[2]] if "; needs " in (text := TEMPLATES[template]) else []
    assert re.findall("pip install (\\S+)", done.stdout) == needs
    for text in (done.stdout, (written / "job.conf").read_text()):
        assert "flstream simulate sub/new" in text
    if template == "gpt2" and find_spec("trl") is None:
        return  # its libraries are imported ahead, and a job file is refused without them
    job, own = load_job(written / "job.conf"), load_job(shipped / "job.conf")
    assert (job.name, job.rounds, job.stages) == ("new", own.rounds, own.stages)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_names_what_it_imports_and_no_more(template):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = TEMPLATES[template].partition("; needs ")[2].strip("'")
    extra = re.fullmatch(r"flstream\[(.*)\]", named)
    groups = [extras[name] for name in extra[1].split(",")] if extra else [[named]]

    def modules(packages):
        names = {re.split(r"[\[>]", package)[0].lower().replace("-", "_") for package in packages}
        return {"sklearn" if name == "scikit_learn" else name for name in names}

    imports = set()
    for path in (ROOT / "jobs" / template).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imports |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imports.add(str(node.module).partition(".")[0])
    conf = (ROOT / "jobs" / template / "job.conf").read_text()
    for words in re.findall(r"^ *preload = \[(.*?)\]", conf, re.MULTILINE):
        imports |= set(words.split(", "))
    imports |= set(re.findall(r"^tracking.type = (\w+)", conf, re.MULTILINE))
    known = {*sys.stdlib_module_names, *modules(project["dependencies"]), "flstream", "model"}
    imports -= known
    assert imports <= set().union(*map(modules, groups))
    assert all(imports & modules(group) or not named for group in groups)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("full",), "full is not empty; name a new folder"),
        (("file",), "file cannot be written: File exists"),
        (("file/below",), "file/below cannot be written: Not a directory"),
        (("new", "--template", "scirpt"), "known are script, learner, digits, "),
        (("my job",), "a job cannot be named after the folder my job"),
        (("",), "give the new folder a NAME: flstream init NAME"),
        (("new", "--template", "script", "--from-nvflare", "x"), "give one of the two"),
        (("--from-nvflare", "nowhere"), "nowhere cannot be read: No such file or directory"),
        (("--from-nvflare", "file"), "file is no configuration; its suffix is none of"),
    ],
)
def test_what_cannot_be_written_is_refused(refused, tmp_path, words, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    assert message in refused("init", *words)
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "notes.txt", "file"}


def test_the_templates_are_listed_and_are_the_jobs_themselves(flstream_here, tmp_path):
    done = flstream_here("init", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(TEMPLATES)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not any(tmp_path.iterdir())
    # A link, so that there is one of each.
    assert (ROOT / "flstream" / "templates").readlink() == Path("../jobs")


SCATTER, SERVER, CLIENT = "scatter_gather", "config_fed_server", "app/config/config_fed_client.json"


def write(root: Path, files: dict[str, object]) -> Path:
    """A job folder with these files, by path; what is no text is written as JSON."""
    for name, content in files.items():
        path = root / (f"app/config/{name}" if name.startswith(SERVER) else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def runs(script: str) -> dict[str, object]:
    """A folder whose executor runs a script."""
    executor = {"name": "PTInProcessClientAPIExecutor", "args": {"task_script_path": script}}
    return {CLIENT: {"executors": [{"tasks": ["train"], "executor": executor}]}}


def test_a_job_of_nvflare_is_written_and_what_is_not_taken_listed(
    nvflare_folders, flstream_here, refused, tmp_path
):
    done = flstream_here("init", "--from-nvflare", nvflare_folders / SCATTER)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["small-net"]
    written = {path.name for path in (tmp_path / "small-net").iterdir()}
    assert written == {"job.conf", "net.py", "train.py"}
    for words in (
        "workflows[0].args.train_timeout = 0: no limit, while clients.round_timeout is an hour",
        "not taken: 1, which job.conf lists, too.",
        "small-net has job.conf, net.py, train.py; next:",
    ):
        assert words in done.stdout
    assert {"net", "train"}.isdisjoint(sys.modules)  # nothing of it is imported
    assert "small-net is not empty; name a new folder" in refused(
        "init", "--from-nvflare", nvflare_folders / SCATTER
    )
    assert flstream_here("init", "a/b", "--from-nvflare", nvflare_folders / SCATTER).returncode == 0
    assert 'name = "b"' in (tmp_path / "a" / "b" / "job.conf").read_text()
    done = flstream_here("init", "--from-nvflare", nvflare_folders / "document" / f"{SERVER}.conf")
    _, _, rest = done.stdout.partition("before it can run, job.conf needs:\n")
    keys = [line.partition(":")[0].strip() for line in rest.splitlines()]
    assert keys == ["clients.count", "model.factory", "train.script"]


HOSTILE: list[tuple[dict[str, object], str]] = [
    ({"README.md": "x"}, "it has no config_fed_server nor config_fed_client"),
    ({f"{SERVER}.json": '{"a": ' * 40_000}, "is nested too deeply to be read"),
    ({f"{SERVER}.json": " " * 10_000_000}, "it is larger than 256 KiB"),
    ({f"{SERVER}.json": '{"a": "\\ud800"}'}, "has a text with a character that no file"),
    ({f"{SERVER}.json": {"workflows": {"id": "w"}}}, "workflows must be a list of sections"),
    (
        {f"{SERVER}.json": {"executors": [{"tasks": 3, "executor": None}]}},
        r"executors[0].executor must be a section with a path or name",
    ),
    ({f"{SERVER}.conf": "a = [1,\nb {"}, "syntax error"),
    ({f"{SERVER}.json": [1]}, "cannot be read as a mapping of names"),
    ({f"{SERVER}.conf": 'a = 1, include package("mine.sub:x.conf")'}, "includes another file"),
    (runs("../../../secret.py"), "the script ../../../secret.py lies outside of the folder custom"),
    (runs("/etc/x.py"), "the script /etc/x.py lies outside of the"),
]


@pytest.mark.parametrize(("files", "message"), HOSTILE, ids=[words for _, words in HOSTILE])
def test_what_cannot_be_read_is_refused_in_one_sentence(refused, tmp_path, files, message):
    write(tmp_path / "in", files)
    before = sorted(tmp_path.rglob("*"))
    errors = refused("init", "new", "--from-nvflare", "in")
    assert message in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_links_out_of_the_folder_are_not_copied_and_a_failed_copy_leaves_nothing(
    flstream_here, refused, tmp_path, monkeypatch
):
    (tmp_path / "secret.txt").write_text("mine")
    folder = write(tmp_path / "in", {**runs("train.py"), "app/custom/train.py": ""})
    (folder / "app" / "custom" / "data.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "app" / "custom" / "above").symlink_to(tmp_path)
    done = flstream_here("init", "new", "--from-nvflare", "in")
    assert done.returncode == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"job.conf", "train.py"}
    for name in ("above", "data.txt"):
        assert f"app/custom/{name}\n  it is no file of this folder" in done.stdout

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("flstream.recipe.job_folder.shutil.copyfile", full)
    assert "cannot be written or read: No space left on device" in refused(
        "init", "a/b", "--from-nvflare", "in"
    )
    assert not (tmp_path / "a").exists()
