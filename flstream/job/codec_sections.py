"""Sections of the built-in codecs: every key with its rule, default and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from flstream.job.annotations import ValueKind
from flstream.job.rules import Real, Section, Whole


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError("")  # its kind says all there is to say
    return number


Group = Annotated[
    Whole,
    Field(ge=2, le=65_536),
    AfterValidator(_power_of_two),
    ValueKind("a power of two", number=str),
]
"""How many numbers share a scale."""


class CastSection(Section):
    """Send numbers of 16 bits, each rounded once to the nearest."""

    to: Literal["bf16", "f16"] = "bf16"
    """The type: bf16 has the range of float32, f16 is more exact and is refused above 65504."""


class Int8Section(Section):
    """Send whole numbers of 8 bits, and a scale for each group of them."""

    group: Group = 256
    """How many numbers share a scale: the fewer, the smaller the errors and the more scales."""


class Int4Section(Section):
    """Send whole numbers of 4 bits, and a scale for each group of them."""

    group: Group = 64
    """How many numbers share a scale: the fewer, the smaller the errors and the more scales."""


class TopKSection(Section):
    """Send the largest changes alone; what is left out is added to the site's next update.

    From Aji and Heafield 2017, arXiv:1704.05021, with the error feedback of Stich et al. 2018,
    arXiv:1809.07599.
    """

    fraction: Annotated[Real, Field(gt=0, le=1)] = 0.01
    """The fraction of each 65536 numbers that is sent."""


class TernarySection(Section):
    """Send the signs of the largest changes and the mean of their magnitudes.

    From Sattler et al. 2019, arXiv:1903.02891; what is left out is added to the site's next update.
    """

    fraction: Annotated[Real, Field(gt=0, le=1)] = 0.04
    """The fraction of each 65536 numbers that is sent."""


class DeltaSection(Section):
    """Send the exclusive or with the bytes of a model that the receiver has, for zstd after it."""


class ShuffleSection(Section):
    """Send first bytes of all numbers, then all second ones, and so on, for zstd after it."""


class ZstdSection(Section):
    """Compress every frame with Zstandard."""

    level: Annotated[Whole, Field(ge=1, le=19)] = 1
    """The level: above 1, it takes many times as long for weights that get hardly any smaller."""


BUILT_IN: Mapping[str, type[Section]] = {
    "cast": CastSection,
    "int8": Int8Section,
    "int4": Int4Section,
    "topk": TopKSection,
    "ternary": TernarySection,
    "delta": DeltaSection,
    "shuffle": ShuffleSection,
    "zstd": ZstdSection,
}
"""Sections of the arguments of built-in codecs, by the codec's name."""

LOSSY = ("cast", "int8", "int4", "topk", "ternary")
"""Codecs that change numbers."""
FEEDBACK = ("topk", "ternary")
"""Those of them that leave numbers out, and send them later."""
STEPS = ("delta", "shuffle")
"""Exact codecs that leave as many bytes as there were."""
COMPRESSORS = ("zstd",)
"""Exact codecs that make bytes fewer."""
