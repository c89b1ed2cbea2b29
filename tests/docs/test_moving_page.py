"""The page on moving from other frameworks: its code runs, and its tables are those of the code."""

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

import flstream.client
import flstream.client.tracking
from flstream.cli.init import init
from flstream.client.alias import ALIASES, NAMES
from flstream.job import load_job
from flstream.job.code_check import code_problems
from flstream.recipe.nvflare.components import COMPONENTS, FILTERS
from flstream.recipe.nvflare.controllers import CONTROLLERS
from flstream.recipe.nvflare.executors import EXECUTORS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "moving.md").read_text()
KEYS = set(re.findall(r"^### `(.*)`$", (DOCS / "job.md").read_text(), flags=re.MULTILINE))
FILE = re.compile(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
NVFLARE, FLOWER = "The same job twice", "As an app of Flower"
SCRIPT, LEARNER = "As a script", "As a learner"
# What flstream.client has and NVFlare has not.
OWN = {
    "DynamicRegulariser",
    "ScaffoldControl",
    "Learner",
    "SiteContext",
    "get_state_dir",
    "proximal_term",
    "device",
    "restore_optimizer",
}


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    _, found, rest = PAGE.partition(f"\n### {heading}\n")
    assert found, heading
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def files(heading: str) -> dict[str, str]:
    """The files that are shown below a heading, by name."""
    return dict(FILE.findall(section(heading)))


def job(heading: str) -> dict[str, str]:
    """The files of a job: those below a heading, and the one that all jobs have."""
    shared = dict(FILE.findall(PAGE.partition("\n## ")[0]))
    return {**shared, **files(heading)}


def table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def count(shown: Mapping[str, str], *names: str) -> int:
    """How many lines of files are neither blank nor a comment."""
    lines = [line.strip() for name in names for line in shown[name].splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def test_nvflares_script_runs_unchanged_and_with_another_import_to_the_same_bits(jobs):
    shown = job(NVFLARE)
    before = shown["client.py"]
    assert "flstream" not in before
    unchanged = jobs.run_files(shown).summary
    assert unchanged.status == "finished", unchanged.error
    assert unchanged.warnings == []
    assert unchanged.evaluate == "received"
    scores = [each.get("accuracy") for each in unchanged.metrics]
    assert scores[0] < 0.7 < 0.9 < scores[-2]
    assert scores[-1] is None
    shown["client.py"] = before.replace("nvflare.client", "flstream.client")
    for line in re.findall(r"^    (import .*|from .*)$", section("One line changed"), re.MULTILINE):
        assert line in shown["client.py"].splitlines()
    changed = jobs.run_files(shown, "train.alias=null").summary
    assert changed.status == "finished", changed.error
    assert changed.model.digest == unchanged.model.digest


@pytest.mark.nightly
def test_the_script_and_the_learner_end_in_the_same_bits(jobs):
    script = jobs.run_files(job(SCRIPT)).summary
    learner = jobs.run_files(job(LEARNER), "clients.parallel=1").summary
    for summary in (script, learner):
        assert summary.status == "finished", summary.error
        assert summary.warnings == []
        assert summary.evaluate == "task"
        assert summary.metrics[-1]["accuracy"] > 0.9
    assert script.model.digest == learner.model.digest


@pytest.mark.parametrize("heading", [NVFLARE, SCRIPT, LEARNER])
def test_nothing_is_wrong_with_a_job(tmp_path, heading):
    for name, text in job(heading).items():
        (tmp_path / name).write_text(text)
    assert code_problems(load_job(tmp_path / "job.conf", [])) == []


@pytest.mark.parametrize("heading", [NVFLARE, FLOWER])
def test_what_cannot_be_run_here_is_sound_at_least(heading):
    for name, text in files(heading).items():
        if name.endswith(".py"):
            ast.parse(text)
        elif name.endswith(".toml"):
            tomllib.loads(text)


def test_the_lines_of_nvflares_job_are_those_that_the_table_counts():
    shown = files(NVFLARE)
    before, after, script = (count(shown, each) for each in ("job.py", "job.conf", "client.py"))
    assert table(NVFLARE) == [
        ["`job.py`, `job.conf`", str(before), str(after)],
        ["`client.py`", str(script), f"{script}, none of them changed"],
        ["together", str(before + script), str(after + script)],
    ]


def test_the_lines_of_flowers_app_are_those_that_the_table_counts():
    app, script, learner = files(FLOWER), files(SCRIPT), files(LEARNER)
    settings = [count(app, "pyproject.toml"), count(script, "job.conf"), count(learner, "job.conf")]
    code = [count(app, "client_app.py"), count(script, "client.py"), count(learner, "learner.py")]
    whole = [count(app, *app), count(script, *script), count(learner, *learner)]
    assert table(LEARNER) == [
        ["`pyproject.toml`, `job.conf`", *map(str, settings)],
        ["`server_app.py`", str(count(app, "server_app.py")), "", ""],
        ["`client_app.py`, `client.py`, `learner.py`", *map(str, code)],
        ["together", *map(str, whole)],
    ]


def test_the_table_of_the_alias_has_its_modules_and_names():
    listed: dict[str, set[str]] = {}
    for modules, names in table("No line changed"):
        if modules.startswith("`nvflare."):
            for module in re.findall(r"`([\w.]+)`", modules):
                listed[module] = set(re.findall(r"`(\w+)`", names))
    client = set(flstream.client.__all__) - OWN
    own = {"nvflare.client": client, "nvflare.client.api": client}
    own |= {f"nvflare.client.{trainer}": client | {"patch"} for trainer in ("hf", "lightning")}
    own["nvflare.client.decorator"] = {"train", "evaluate"}
    own["nvflare.client.tracking"] = set(flstream.client.tracking.__all__)
    assert own.keys() == ALIASES.keys()
    assert listed == own | {module: set(names) for module, names in NAMES.items()}


def test_the_table_of_classes_has_those_that_are_known():
    listed = {}
    for names, becomes in table("Job folders"):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), becomes)
    known = {**EXECUTORS, **COMPONENTS, **FILTERS}
    assert listed.keys() == {*CONTROLLERS, *known}
    for name, controller in CONTROLLERS.items():
        if controller.workflow in ("fedavg", "cyclic") and "FedOpt" not in name:
            assert listed[name] == f"`workflow.type = {controller.workflow}`"
    kinds = {"none, and none is needed": "not needed", "none": "no counterpart"}
    for name, each in known.items():
        if not name.startswith(("Swarm", "CrossSite")):
            kind = kinds.get(listed[name], "becomes")
            assert each.kind == ("comes later" if listed[name] == "nothing yet" else kind), name


def test_what_the_page_shows_of_a_job_folder_is_what_the_command_prints(
    nvflare_folders, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    init(from_nvflare=nvflare_folders / "scatter_gather")
    printed = capsys.readouterr().out.splitlines()
    [block] = re.findall(r"^```\n\$ (.*?)^```$", section("Job folders"), re.MULTILINE | re.DOTALL)
    command, *shown = block.splitlines()
    assert command == "flstream init --from-nvflare jobs/small-net"
    assert [line for line in printed if line in shown] == shown


def test_the_keys_that_the_page_names_are_those_of_a_job_file():
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    named = set(re.findall(r"`(?:--set )?([a-z_]+(?:\.[a-z_0-9]+)+)(?:[= ][^`]*)?`", PAGE))
    # Attributes of what a script receives.
    python = {"model.current_round", "model.total_rounds", "model.meta"}
    keys = {each for each in named - python if each.partition(".")[0] in sections}
    assert len(keys) > 20
    arguments = {each for each in keys if each.startswith("train.args.")}
    assert keys - arguments <= KEYS
