"""Small Flower apps that tests write into a folder, and run."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from run_fixtures import Jobs, Run

from flstream.compat import load_path
from flstream.job import Job
from flstream.runs.resume import plan_resume
from flstream.runs.run_directory import RunDirectory

PYPROJECT = """
[project]
name = "little-app"

[tool.flwr.app.components]
serverapp = "little_app.server_app:app"
clientapp = "little_app.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 2
lr = 0.5
inner.steps = 3

[tool.flwr.federations]
default = "here"

[tool.flwr.federations.here]
options.num-supernodes = 3
"""

CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(msg: Message, context: Context):
    arrays = msg.content["arrays"].to_numpy_ndarrays()
    number = context.node_config["partition-id"] + 1
    arrays = [array + np.asarray(number, array.dtype) for array in arrays]
    metrics = MetricRecord({"num-examples": number, "loss": 1.0 / number})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content=content, reply_to=msg)

@app.evaluate()
def evaluate(msg: Message, context: Context):
    total = sum(float(array.sum()) for array in msg.content["arrays"].to_numpy_ndarrays())
    metrics = MetricRecord({"num-examples": 2, "total": total, "pair": [total, 1.0]})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
"""

SERVER = """
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord([np.zeros((2, 3), np.float32), np.ones(4)])
    result = FedAvg().start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    print("ended with", [array.tolist() for array in result.arrays.to_numpy_ndarrays()])
"""


class Apps(NamedTuple):
    """Apps in a folder of a test's own.

    Attributes:
        jobs: Runs their jobs.
    """

    jobs: Jobs

    @property
    def folder(self) -> Path:
        """The app's folder."""
        return self.jobs.folder / "app"

    def write(self, server: str = SERVER, client: str = CLIENT, project: str = PYPROJECT) -> Path:
        """Write an app, and return its folder."""
        package = self.folder / "little_app"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "server_app.py").write_text(textwrap.dedent(server))
        (package / "client_app.py").write_text(textwrap.dedent(client))
        (self.folder / "pyproject.toml").write_text(project)
        forget_modules()
        return self.folder

    def job(self, *overrides: str, settings: dict | None = None) -> Job:
        """The job of the app that was written last."""
        return load_path(self.folder, [*self.jobs.engine, *overrides], settings).job

    def run(self, server: str = SERVER, client: str = CLIENT, *overrides: str) -> Run:
        """Write an app and run it, whatever comes of it."""
        self.write(server, client)
        return self.jobs._begin(self.job(*overrides))

    def finish(self, server: str = SERVER, client: str = CLIENT, *overrides: str) -> Run:
        """Write an app and run it to its end."""
        return finished(self.run(server, client, *overrides))

    def resume(self, run: Run, *overrides: str) -> Run:
        """Go on with a run of the app that was written last, to its end."""
        job = self.job(*overrides)
        return self.resume_in(RunDirectory.reopen(job.name, run.directory.path), *overrides)

    def resume_in(self, directory: RunDirectory, *overrides: str) -> Run:
        """Go on with the run in a directory, to its end."""
        forget_modules()
        job = self.job(*overrides)
        with directory.in_use():
            return finished(self.jobs._simulate(job, directory, plan_resume(job, directory), None))


def finished(run: Run) -> Run:
    """The run, which must have come to its end."""
    assert run.summary.status == "finished", run.summary.error
    return run


def log_of(run: Run) -> Sequence[str]:
    """Lines that the ServerApp has printed."""
    return run.directory.log("serverapp").read_text().splitlines()


def forget_modules() -> None:
    """Forget the modules of apps and of Flower, which inline runs import into this process."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("little_app", "flwr")]:
        del sys.modules[name]
    sys.meta_path[:] = [each for each in sys.meta_path if getattr(each, "package", "") != "flwr"]


@pytest.fixture
def apps(jobs: Jobs) -> Iterator[Apps]:
    """Apps of a test's own."""
    apps, path = Apps(jobs), list(sys.path)
    yield apps
    forget_modules()
    sys.path[:] = path
    shutil.rmtree(apps.folder, ignore_errors=True)
