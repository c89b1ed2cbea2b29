"""The programs of the pages run, and print what they are to print."""

import re
import runpy
import subprocess
import sys
from functools import partialmethod

import pytest
from test_pages import blocks, page

import flstream.client
import flstream.client.tracking
from flstream.cli.init import init
from flstream.job import load_job
from flstream.recipe import SimEnv
from flstream.recipe.nvflare import CLASSES
from flstream.worker.alias import ALIASES, NAMES

FILE = re.compile(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
PRINTED = {
    "pairs.py": {"finished", "True 1000000.0"},
    "specs.py": {"['fc', 'conv'] 288"},
    "store.py": {"20 7.0 4"},
}


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Run a program of a page in this process, the jobs that it makes included."""
    monkeypatch.setattr("flstream.report.running.leave_page", lambda *_, **__: None)
    monkeypatch.setattr(SimEnv, "__init__", partialmethod(SimEnv.__init__, engine="inline"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(name, text):
        (tmp_path / name).write_text(text)
        capfd.readouterr()
        runpy.run_path(name, run_name="__main__")
        return capfd.readouterr().out

    yield run
    sys.modules.pop("model", None)


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_of_the_page_on_streaming_prints_what_it_is_to_print(run, name):
    programs = dict(FILE.findall(page("streaming")))
    assert programs.keys() >= PRINTED.keys()
    assert set(run(name, programs[name]).splitlines()) == PRINTED[name]


@pytest.mark.nightly
def test_a_model_goes_from_one_terminal_of_the_page_to_the_other(tmp_path):
    def started(name, text):
        (tmp_path / name).write_text(text)
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        return subprocess.Popen([sys.executable, name], cwd=tmp_path, text=True, **pipes)

    shown = dict(FILE.findall(page("streaming")))
    # The port is another one, since that of the page may be in use.
    with started("sender.py", shown["sender.py"].replace(":7707", ":0")) as sender:
        lines = "".join(sender.stdout.readline() for _ in range(3))
        with started("receiver.py", shown["receiver.py"]) as receiver:
            received, _ = receiver.communicate(lines, timeout=120)
        assert "ok 16176040 {'0.weight': (4000, 1000), '0.bias': (4000,)" in received
        assert sender.communicate(timeout=60)[0] == "finished\n"


def test_the_programs_of_the_pages_on_links_and_on_python_run(run, tmp_path):
    [example] = blocks(page("network"), "python")
    run("links.py", example)
    programs = dict(FILE.findall(page("python")))
    for name in ("model.py", "client.py"):
        (tmp_path / name).write_text(programs[name])
    lines = run("job.py", programs["job.py"]).splitlines()
    [made] = (tmp_path / "runs").glob("points-*")
    assert lines[-1] == f"finished {made}"
    assert (made / "tensorboard").is_dir()
    assert load_job(made / "job.conf").key_metric_mode == "min"
    run("pieces.py", programs["pieces.py"])
    exported = load_job(tmp_path / "jobs" / "pieces" / "job.conf")
    assert exported.clients.names == ["ward", "clinic"]
    assert len(list((tmp_path / "runs").glob("pieces-*"))) == 1


MOVING = page("moving")
NVFLARE, LEARNER = "The same job twice", "As a learner"
# The learner of the page as a script.
SCRIPT = """
import argparse

from task import Net, accuracy, fit, load_data

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--lr", type=float)
args = parser.parse_args()
net = Net()
flare.init()
info = flare.system_info()
data, unseen = load_data(info["site_index"], info["clients"])
while flare.is_running():
    flare.receive(into=net)
    if flare.is_evaluate():
        answer = flare.FLModel(metrics={"accuracy": accuracy(net, unseen)})
        answer.meta["num_examples"] = len(unseen[1])
    else:
        loss = fit(net, data, args.epochs, args.lr)
        answer = flare.FLModel(params=net.state_dict(), metrics={"loss": loss})
        answer.meta["num_examples"] = len(data[1])
    flare.send(answer)
"""
# What flstream.client has and NVFlare has not.
OWN = {
    *("DynamicRegulariser", "ScaffoldControl", "Learner", "SiteContext", "get_state_dir"),
    *("proximal_term", "device", "restore_optimizer", "personal", "own_model"),
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
    shown = job(NVFLARE)
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


def test_the_script_and_the_learner_end_in_the_same_bits(jobs):
    shown = job(LEARNER)
    learner = jobs.run_files(shown).summary
    conf = shown["job.conf"].replace('learner = "learner:Cancer"', "script = client.py")
    script = jobs.run_files({**shown, "client.py": SCRIPT, "job.conf": conf}).summary
    for summary in (script, learner):
        assert summary.status == "finished", summary.error
        assert summary.warnings == []
        assert summary.metrics[-1]["accuracy"] > 0.9
    assert script.model.digest == learner.model.digest


def test_the_names_and_classes_of_nvflares_that_the_page_lists_are_known():
    client = set(flstream.client.__all__) - OWN
    listed: dict[str, set[str]] = {}
    text = " ".join(section("No line changed").split())
    for modules, names in re.findall(r"((?:`nvflare[\w.]+`(?:, )?)+): (.*?)(?=;| - |$)", text):
        for module in re.findall(r"`([\w.]+)`", modules):
            same = client if names.startswith("the same") else set()
            listed[module] = same | set(re.findall(r"`(\w+)`", names))
    own = {"nvflare.client": client, "nvflare.client.api": client}
    own |= {f"nvflare.client.{trainer}": client | {"patch"} for trainer in ("hf", "lightning")}
    own["nvflare.client.decorator"] = {"train", "evaluate"}
    own["nvflare.client.tracking"] = set(flstream.client.tracking.__all__)
    assert own.keys() == ALIASES.keys()
    other = {module: {each.__name__ for each in classes} for module, classes in NAMES.items()}
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
