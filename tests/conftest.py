"""Setup of all tests: how Hypothesis tries examples."""

import os
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, settings

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
