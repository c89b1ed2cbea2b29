"""Hypothesis tries the same examples every time, and keeps no files of its own."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "flstream",
    derandomize=True,
    database=None,
    deadline=None,
    # Examples share a fixture such as `tmp_path` where each one writes what it reads.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("flstream")

pytest_plugins = ["run_fixtures"]
