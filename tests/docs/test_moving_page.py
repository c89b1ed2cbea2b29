"""The page on moving: both sides of a move end in the same bits, and its tables are complete."""

import re

from test_pages import blocks, page

import flstream.client
import flstream.client.tracking
from flstream.cli.init import init
from flstream.recipe.nvflare import CLASSES
from flstream.worker.alias import ALIASES, NAMES

FILE = re.compile(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)

MOVING = page("moving")
# What flstream.client has and NVFlare has not.
OWN = {
    *("base_model", "edit", "offloaded", "work", "deadline", "TimeLeft"),
    *(
        "TensorSpec",
        "fetch",
        "DynamicRegulariser",
        "ScaffoldControl",
        "Learner",
        "SiteContext",
        "get_state_dir",
    ),
    *(
        "proximal_term",
        "device",
        "restore_optimizer",
        "personal",
        "own_model",
        "to_rank",
        "outer_steps",
    ),
}


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    _, found, rest = MOVING.partition(f"\n### {heading}\n")
    assert found, heading
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def job(heading: str) -> dict[str, str]:
    """The files of a job: those below a heading, and the one that all jobs have."""
    return dict(FILE.findall(MOVING.partition("\n## ")[0]) + FILE.findall(section(heading)))


def test_nvflares_script_runs_unchanged_and_with_another_import_to_the_same_bits(jobs):
    shown = job("The same job twice")
    before = shown["client.py"]
    assert "flstream" not in before
    unchanged = jobs.run_files(shown).summary
    assert unchanged.status == "finished", unchanged.error
    assert (unchanged.warnings, unchanged.evaluate) == ([], "received")
    scores = [each.get("accuracy") for each in unchanged.metrics]
    assert scores[0] < 0.7 < 0.9 < scores[-2]
    shown["client.py"] = before.replace("nvflare.client", "flstream.client")
    for line in re.findall(r"`((?:import|from) [^`]*)`", section("One line changed")):
        assert line in shown["client.py"].splitlines()
    changed = jobs.run_files(shown, "train.alias=null").summary
    assert changed.model.digest == unchanged.model.digest


def test_the_script_and_the_learner_of_the_page_on_training_end_in_the_same_bits(jobs):
    shown = dict(FILE.findall(page("training")))  # of client.py, the version that evaluates
    learner = 'learner = "learner:Points", args { lr = 0.1 }'
    conf = shown["job.conf"].replace("script = client.py", learner)
    runs = [jobs.run_files({**shown, "job.conf": each}) for each in (shown["job.conf"], conf)]
    for run in runs:
        assert run.summary.status == "finished", run.summary.error
        assert run.summary.warnings == []
        assert run.summary.metrics[-1]["accuracy"] > 0.7
    script, by_learner = (run.summary.model.digest for run in runs)
    assert script == by_learner


def test_the_names_and_classes_of_nvflares_that_the_page_lists_are_known():
    client = set(flstream.client.__all__) - OWN
    listed: dict[str, set[str]] = {}
    text = " ".join(section("No line changed").split())
    for modules, names in re.findall(r"((?:`nvflare[\w.]+`(?:, )?)+): (.*?)(?=;| - |$)", text):
        for module in re.findall(r"`([\w.]+)`", modules):
            same = client if names.startswith("the same") else set()
            listed[module] = same | set(re.findall(r"`(\w+)`", names))
    own = {"nvflare.client": client, "nvflare.client.api": client}
    own["nvflare.client.hf"] = client | {"patch"}
    own["nvflare.client.lightning"] = client | {"patch", "logger"}
    own["nvflare.client.decorator"] = {"train", "evaluate"}
    own["nvflare.client.tracking"] = set(flstream.client.tracking.__all__)
    assert own.keys() == {f"nvflare.{module}" for module in ALIASES}
    other = {
        f"nvflare.{module}": {each.__name__ for each in objects}
        for module, objects in NAMES.items()
        if objects
    }
    other["nvflare.app_opt.pt.fedproxloss"] = {"PTFedProxLoss"}
    assert listed == own | other
    assert set(re.findall(r"`([A-Z][a-z]\w+)`", section("Job folders"))) <= {*CLASSES}


def test_what_the_page_shows_of_a_job_folder_is_what_the_command_prints(
    nvflare_folders, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    init(from_nvflare=nvflare_folders / "scatter_gather")
    printed = capsys.readouterr().out.splitlines()
    [block] = blocks(section("Job folders"), "console")
    command, *shown, _ = block.removeprefix("$ ").splitlines()
    assert command == "flstream init --from-nvflare jobs/small-net"
    assert [line for line in printed if line in shown] == shown
