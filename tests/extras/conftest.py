"""Tests of what needs the extras; ``make test-extras`` runs them."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from patched_jobs import LIBRARIES as TRAINERS
from patched_jobs import finished
from run_fixtures import LOCAL, Jobs, SharedHost
from safetensors.torch import load_file
from shared_results import made_once
from tiny_gpt2 import write_model

from flstream.engines.processes import PRELOAD, QUIET_ARROW, variables_of
from flstream.job import Job

HERE = Path(__file__).parent
# Nothing may look for a server of others, and what libraries print about is not what is tested.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "POSSIBLE_USER_WARNINGS": "off",
}

# What takes 15 s of a core, once for all runs: the imports of that file from these libraries.
LIBRARY_IMPORTS = HERE / "library_imports.py"
PRELOADED = "transformers,lightning,pytorch_lightning,peft,trl"


# As for each job, also where a test's own process is the first: threads outlive no fork.
_HOST = SharedHost(
    LIBRARY_IMPORTS,
    **{PRELOAD: PRELOADED, **QUIET_ARROW, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
)


def library_host(job: Job | None = None) -> SharedHost:
    """Return the process host with the libraries, prepared for a job."""
    _HOST.prepare({} if job is None else variables_of(job))
    return _HOST


def in_a_process(target: Callable[..., None], *args: object) -> None:
    """Call a function of a module in a process that has the libraries, so that no test has."""
    with library_host() as host:
        process = host.start("test", f"{target.__module__}:{target.__qualname__}", *args)
        assert process.exit_code(120) == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.extras)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Calls a function in a process that has the libraries."""
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path_factory.mktemp("datasets"))
    yield in_a_process
    _HOST.end()


@pytest.fixture
def jobs(tmp_path, libraries):
    """Jobs whose processes have the libraries."""
    return Jobs(tmp_path, library_host, LOCAL)


@pytest.fixture(scope="session")
def jobs_in(libraries):
    """The same, in a folder that several tests share."""
    return partial(Jobs, host_for=library_host, engine=LOCAL)


@pytest.fixture(scope="session")
def tiny(libraries, tmp_path_factory):
    """A folder with a pretrained GPT-2 of 40,000 parameters and its tokenizer."""
    return made_once(tmp_path_factory, "tiny", lambda folder: libraries(write_model, folder))


@pytest.fixture(scope="session")
def plain(jobs_in, tmp_path_factory):
    """The last model of a library's trainer, patched and not told anything else."""

    def plain(library: str) -> dict[str, torch.Tensor]:
        def make(folder: Path) -> None:
            run = finished(jobs_in(folder), TRAINERS[library].script())
            run.directory.final_model.rename(folder / "model.safetensors")

        folder = made_once(tmp_path_factory, f"plain {library}", make)
        return load_file(folder / "model.safetensors")

    return plain
