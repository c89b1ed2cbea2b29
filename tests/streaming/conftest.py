"""A service with receivers, for each test."""

from collections.abc import Iterator

import pytest
from halls import Hall, open_hall


@pytest.fixture
def hall() -> Iterator[Hall]:
    with open_hall() as hall:
        yield hall
