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
PACKAGE = Path(__file__).parents[2] / "flstream"


@cache
def draw() -> str:
    """Hash of flstream/, or the draw that the environment asks for."""
    code = xxhash.xxh3_64()
    for path in sorted(PACKAGE.rglob("*.py")):
        code.update(f"{path.relative_to(PACKAGE)}\n{path.read_text()}".encode())
    return os.environ.get(DRAW) or code.hexdigest()


def drawn(cases: Sequence[tuple[object, ...]], share: int, *by: int) -> Sequence[object]:
    """Cases as parameters of a test, of which all but one in a few are for `make test-nightly`.

    Cases are put in order by what they have at the places `by`, and one is drawn of each `share`
    in succession: whatever many cases have in common, one that has it runs each time.
    """
    ordered = sorted(range(len(cases)), key=lambda place: [str(cases[place][each]) for each in by])
    chance = random.Random(draw())
    chosen = {
        chance.choice(ordered[first : first + share]) for first in range(0, len(cases), share)
    }
    return [
        pytest.param(case, marks=() if place in chosen else pytest.mark.nightly)
        for place, case in enumerate(cases)
    ]
