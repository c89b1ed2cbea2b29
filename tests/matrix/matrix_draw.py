"""The draw of the cases that run each time, by the hash of the code that they test."""

import os
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import xxhash

DRAW = "FLSTREAM_DRAW"
"""Environment variable with a draw to repeat."""
SHARE = 6
"""One case in so many runs each time."""

PACKAGE = Path(__file__).parents[2] / "flstream"


@cache
def draw() -> str:
    """Hash of flstream/, or the draw that the environment asks for."""
    code = xxhash.xxh3_64()
    for path in sorted(PACKAGE.rglob("*.py")):
        code.update(f"{path.relative_to(PACKAGE)}\n{path.read_text()}".encode())
    return os.environ.get(DRAW) or code.hexdigest()


def drawn(cases: Sequence[tuple[object, ...]], share: int = SHARE) -> Sequence[object]:
    """Cases as parameters of a test, of which all but one in a few are for `make test-nightly`."""
    chosen = set(random.Random(draw()).sample(range(len(cases)), -(-len(cases) // share)))
    return [
        pytest.param(case, marks=() if place in chosen else pytest.mark.nightly)
        for place, case in enumerate(cases)
    ]
