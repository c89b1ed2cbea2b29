"""Learners and scripts written for a test, and a worker that runs them."""

from serving_fixtures import (  # noqa: F401
    _as_if_in_a_process_of_its_own,
    host,
    learner,
    run,
    script,
    start_worker,
)
