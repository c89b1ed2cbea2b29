"""What all tests share: how Hypothesis tries examples, and which tests are slow."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "flstream",
    derandomize=True,
    database=None,
    deadline=None,
    # Examples share a fixture such as `tmp_path` where each one writes what it reads.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# `make test` and `make test-fast` try a few of them.
settings.register_profile("brief", settings.get_profile("flstream"), max_examples=40)
settings.register_profile("fast", settings.get_profile("flstream"), max_examples=15)
settings.load_profile("flstream")

pytest_plugins = ["nvflare_jobs", "run_fixtures"]

# Fixtures with which a test runs jobs or commands, each of them in processes of its own.
WHOLE_RUNS = {"jobs", "jobs_in", "jobs_of_their_own", "flows", "flstream"}
# The file that stands for them where only the fast tests are run.
FAST_RUNS = "simulation/test_rounds.py"


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples are tried, before any test is imported."""
    if "not slow" in config.option.markexpr:
        settings.load_profile("fast")
    elif "not soak" in config.option.markexpr:
        settings.load_profile("brief")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run whole jobs as slow."""
    for item in items:
        runs = WHOLE_RUNS.intersection(getattr(item, "fixturenames", ()))
        if runs and not item.path.as_posix().endswith(FAST_RUNS):
            item.add_marker(pytest.mark.slow)
