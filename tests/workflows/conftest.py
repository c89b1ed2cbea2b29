import pytest
from flows import Flows


@pytest.fixture
def flows(jobs):
    """Runs of workflows that the test writes."""
    return Flows(jobs)
