"""Setup of all tests: how Hypothesis tries examples, and where temporary files lie."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

# Processes of tests share the cores: threads of torch would spend more time waiting than working.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Where processes of runs look for a test that kills them at a point; nearly always nobody is there.
# It is set before the first fork server of this process starts, and each process has its own.
os.environ["FLSTREAM_HALTS"] = f"{tempfile.gettempdir()}/flstream-halts-{os.getpid()}"

# A shell's background job ignores Ctrl-C, and so would all that its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "nightly",
    derandomize=True,
    database=None,
    deadline=None,
    # Examples share a fixture such as `tmp_path` where each one writes what it reads.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# `make test` tries a few of them.
settings.register_profile("brief", settings.get_profile("nightly"), max_examples=25)
settings.load_profile("nightly")

pytest_plugins = ["nvflare_jobs", "run_fixtures"]


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples are tried, before any test is imported."""
    if "not nightly" in config.option.markexpr:
        settings.load_profile("brief")
        keep_files_in_memory()


def keep_files_in_memory() -> None:
    """Make temporary files in memory where there is room: a disk takes half the time of a run.

    A run syncs dozens of small files. What runs each night has the disk.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not memory.is_dir():
        return
    if min(shutil.disk_usage(memory).free, psutil.virtual_memory().available) >= 6 << 30:
        os.environ["TMPDIR"] = tempfile.tempdir = str(memory)
