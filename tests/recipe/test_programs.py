"""Programs of all shapes: without a guard, in threads, with packages and sub-folders."""

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.recipe import FedAvgRecipe, FedJob, RunFailedError, ScriptRunner, SimEnv

ROOT_IMPORTER = """
import flstream.client as flare
from shared import STEP
from src.util import double

flare.init()
while flare.is_running():
    model = flare.receive()
    params = {name: each + double(STEP) for name, each in model.params.items()}
    flare.send(flare.FLModel(params=params, metrics={"loss": 1.0}))
"""


def python(program):
    return subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, timeout=120
    )


def simulate(job, directory):
    line = [sys.executable, "-m", "flstream", "simulate", str(job), "-q"]
    done = subprocess.run(
        [*line, "--run-dir", str(directory)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def recipe(**given):
    arguments = {"num_rounds": 1, "min_clients": 2, "model": "model:Net"}
    return FedAvgRecipe(**{**arguments, "train_script": "client.py", **given})


@pytest.mark.nightly
def test_a_program_that_a_run_imports_does_not_start_another_run(folder, write):
    write(
        "job.py",
        """
        import torch
        from flstream.recipe import FedAvgRecipe, SimEnv

        class Own(torch.nn.Linear):
            def __init__(self):
                super().__init__(2, 1)

        made = FedAvgRecipe(min_clients=1, num_rounds=1, model=Own, train_script="client.py")
        made.execute(SimEnv(num_clients=1))
        """,
    )
    done = python("job.py")
    assert done.returncode == 1
    assert 'put what runs the job under: if __name__ == "__main__":' in done.stderr
    assert len(list(Path("runs").iterdir())) == 1


@pytest.mark.nightly
def test_runs_of_several_threads_wait_for_each_other(folder):
    found = []

    def run(number):
        env = SimEnv(num_clients=2, quiet=True, workspace_root=f"runs-{number}")
        found.append(recipe().execute(env))

    threads = [threading.Thread(target=run, args=[number]) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each.get_status() for each in found] == ["finished"] * 3
    assert len({each.digest for each in found}) == 1


@pytest.mark.nightly
def test_a_script_in_a_folder_imports_from_the_jobs_folder_also_when_exported(folder, write):
    (folder / "src").mkdir()
    write("src/client.py", ROOT_IMPORTER)
    write("src/util.py", "def double(number):\n    return 2 * number\n")
    write("shared.py", "STEP = 1.5\n")
    made = recipe(train_script="src/client.py")
    run = made.execute(SimEnv(num_clients=2, quiet=True))
    exported = made.export("exported")
    there = sorted(path.relative_to(exported).as_posix() for path in exported.rglob("*.py"))
    assert there == ["model.py", "shared.py", "src/client.py", "src/util.py"]
    elsewhere = shutil.move(exported, folder / "moved")
    for name in ("shared.py", "model.py"):
        (folder / name).unlink()
    shutil.rmtree(folder / "src")
    simulate(elsewhere, folder / "run")
    assert (folder / "run" / "global.safetensors").read_bytes() == run.model.read_bytes()


@pytest.mark.nightly
def test_a_model_in_a_package_may_import_relatively_also_when_exported(folder, write):
    (folder / "nets" / "deep").mkdir(parents=True)
    for name in ("nets/__init__.py", "nets/deep/__init__.py"):
        write(name, "")
    write("nets/parts.py", "WIDTH = 3\n")
    write(
        "nets/deep/made.py",
        """
        import torch
        from ..parts import WIDTH

        def build():
            return torch.nn.Sequential(torch.nn.Linear(2, WIDTH), torch.nn.Linear(WIDTH, 1))
        """,
    )
    made = recipe(model="nets.deep.made:build")
    run = made.execute(SimEnv(num_clients=2, quiet=True))
    exported = shutil.move(made.export("exported"), folder / "moved")
    shutil.rmtree(folder / "nets")
    simulate(exported, folder / "run")
    assert (folder / "run" / "global.safetensors").read_bytes() == run.model.read_bytes()


def test_weights_that_cannot_be_written_are_a_sentence(folder):
    from model import Net

    Path("file").write_text("")
    with pytest.raises(UsageError, match="initial weights cannot be written to file"):
        recipe(model=Net()).execute(SimEnv(num_clients=2, quiet=True, workspace_root="file"))


@pytest.mark.nightly
def test_a_model_without_tensors_is_a_sentence(folder, write):
    write("empty.py", "import torch\n\ndef build():\n    return torch.nn.Identity()\n")
    with pytest.raises(RunFailedError, match="the model has no tensors"):
        recipe(model="empty:build").execute(SimEnv(num_clients=2, quiet=True))


@pytest.mark.parametrize("text", ["[0,1],[2", "[0]]", "0,,1", "[0],1", ""])
def test_gpus_that_are_not_as_documented_are_refused(text):
    with pytest.raises(UsageError, match="gpu_config"):
        SimEnv(num_clients=1, gpu_config=text)


@pytest.mark.nightly
def test_a_weight_that_is_no_number_of_examples_fails_its_site(folder, write):
    text = (folder / "client.py").read_text()
    write("client.py", text.replace("args.examples}", "1e199 if args.examples > 1 else 1}"))
    made = recipe(aggregation_weights={"a": 1e6})
    made.set_per_site_config({"a": {"train_args": "--examples 2"}})
    with pytest.raises(RunFailedError, match=r"a number from 1e-15 to 1e\+15; send the number"):
        made.execute(SimEnv(clients=["a", "b"], quiet=True))


def test_settings_of_the_models_arguments_are_not_lost(folder):
    made = recipe(model={"class_path": "model.Net", "args": {"width": 4}})
    made.job.configure({"model.args.width": 3})
    assert load_job(made.export("exported") / "job.conf").model.args == {"width": 3}


def _with_both():
    return recipe(train_args="--step 1", config={"train.args": {"step": 2}})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _with_both().export("exported"), "train.args"),
        (lambda: FedAvgRecipe(model="model:Net", train_args="--step 1"), "without train_script"),
        (lambda: FedJob("it").to({"seed": 3}, "site-1"), "cannot be added to site-1"),
        (lambda: FedJob("it").to_server(ScriptRunner("client.py")), "cannot be added to server"),
    ],
)
def test_what_would_be_passed_over_is_refused(folder, call, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        call()


@pytest.mark.nightly
def test_a_decorated_function_is_found_in_its_own_file(folder, write):
    write(
        "built.py",
        """
        import torch
        from model import Net

        @torch.no_grad()
        def build():
            return Net()
        """,
    )
    from built import build

    made = recipe(model=build).execute(SimEnv(num_clients=2, quiet=True))
    assert made.get_status() == "finished"


def test_an_export_that_fails_leaves_the_one_before_as_it_was(folder):
    from model import Net

    first = recipe(model=Net()).export("exported")
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="patience"):
        recipe(model=Net(), patience=0).export("exported")
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    assert not list(folder.glob(".export-*"))


def test_a_file_of_a_job_cannot_take_the_place_of_the_job_file(folder):
    (folder / "other").mkdir()
    (folder / "other" / "job.conf").write_text("mine")
    made = recipe()
    made.job.to_clients("other/job.conf")
    with pytest.raises(UsageError, match=r"would both be job\.conf"):
        made.export("exported")


@pytest.mark.nightly
def test_a_script_whose_file_in_the_jobs_folder_imports_nvflare_has_its_names(folder, write):
    (folder / "src").mkdir()
    write("src/client.py", "from loop import run\n\nrun()\n")
    write(
        "loop.py",
        """
        import nvflare.client as flare

        def run():
            flare.init()
            while flare.is_running():
                model = flare.receive()
                flare.send(flare.FLModel(params=model.params, metrics={"loss": 1.0}))
        """,
    )
    made = recipe(train_script="src/client.py")
    assert made.execute(SimEnv(num_clients=2, quiet=True)).get_status() == "finished"
