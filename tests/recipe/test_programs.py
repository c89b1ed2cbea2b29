"""Programs of all shapes: without a guard, in threads, with packages and sub-folders."""

import shutil
import threading
from pathlib import Path

import pytest
from recipe_support import quiet, recipe
from run_fixtures import INLINE

from flstream.job import load_job

ROOT_IMPORTER = """
import nvflare.client as flare
from shared import STEP
from src.util import double

flare.init()
while flare.is_running():
    model = flare.receive()
    params = {name: each + double(STEP) for name, each in model.params.items()}
    flare.send(flare.FLModel(params=params, metrics={"loss": 1.0}))
"""


@pytest.mark.nightly
def test_a_program_that_a_run_imports_does_not_start_another_run(folder, write, python):
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
def test_runs_of_several_threads_wait_for_each_other(folder, processes):
    found = []

    def run(number):
        env = quiet(workspace_root=f"runs-{number}")
        found.append(recipe().execute(env))

    threads = [threading.Thread(target=run, args=[number]) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each.get_status() for each in found] == ["finished"] * 3
    assert len({each.digest for each in found}) == 1


def test_scripts_and_models_of_folders_and_packages_run_also_when_exported(folder, write, jobs_in):
    for name in ("src", "nets", "nets/deep"):
        (folder / name).mkdir()
    write("src/client.py", ROOT_IMPORTER)
    write("src/util.py", "def double(number):\n    return 2 * number\n")
    write("shared.py", "STEP = 1.5\n")
    for name in ("nets/__init__.py", "nets/deep/__init__.py"):
        write(name, "")
    write("nets/parts.py", "WIDTH = 3\n")
    # A decorated function is found in its own file, and a relative import in the package.
    write(
        "nets/deep/made.py",
        """
        import torch
        from ..parts import WIDTH

        @torch.no_grad()
        def build():
            return torch.nn.Sequential(torch.nn.Linear(2, WIDTH), torch.nn.Linear(WIDTH, 1))
        """,
    )
    from nets.deep.made import build

    made = recipe(train_script="src/client.py", model=build)
    run = made.execute(quiet())
    elsewhere = Path(shutil.move(made.export("exported"), folder / "moved"))
    for name in ("src", "nets"):
        shutil.rmtree(folder / name)
    (folder / "shared.py").unlink()
    again = jobs_in(elsewhere, engine=INLINE).run_files({})
    assert again.summary.model.digest == run.digest


def test_settings_of_the_models_arguments_are_not_lost(folder):
    made = recipe(model={"class_path": "model.Net", "args": {"width": 4}})
    made.job.configure({"model.args.width": 3})
    assert load_job(made.export("exported") / "job.conf").model.args == {"width": 3}
