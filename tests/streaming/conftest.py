"""A service with receivers, for each test."""

from collections.abc import Iterator

import pytest
from harness import Harness, open_harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    with open_harness() as harness:
        yield harness
