"""Blocks: the numbers of a model some thousands at a time, for filters.

A block is always the same piece of a tensor: its boundaries do not depend on the chunks in which a
model travels. So whatever a filter does with a block, its result does not depend on them either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from flstream.model.dtypes import unit
from flstream.model.layout import TensorInfo
from flstream.model.random_numbers import Floats, laplaces, normals, stream_key, uniforms

BLOCK = 16_384
"""Numbers of a block; the last one of a tensor may have fewer."""

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class Passage:
    """A model on its way between a site and its training code.

    Attributes:
        site: Name of the site.
        round: Number of the round, from 1.
        direction: Whether the model is an update (``up``), or one that was received (``down``).
        seed: Seed of the site's task, which a repetition of the task has again.
        steps: Number of steps of the training that made an update, if it gives that; else 1.
    """

    site: str
    round: int
    direction: Direction
    seed: int
    steps: float = 1.0


@dataclass(frozen=True)
class Block:
    """Consecutive numbers of one tensor, with what a filter may know of them.

    Attributes:
        tensor: Name of the tensor.
        shape: Shape of the tensor.
        offset: Place of the block's first number in the tensor, counted in C order.
        count: How many numbers it has.
        passage: The model's site, round and direction.
        place: Place of the filter among those of its direction, from 0.
    """

    tensor: str
    shape: tuple[int, ...]
    offset: int
    count: int
    passage: Passage
    place: int

    @property
    def site(self) -> str:
        """Name of the site."""
        return self.passage.site

    @property
    def round(self) -> int:
        """Number of the round, from 1."""
        return self.passage.round

    def normals(self, stream: str = "") -> Floats:
        """Return a normal random number of mean 0 and variance 1 for each number.

        Random numbers depend on the job's seed, the site, the round, the filter's place, the tensor
        and the place of the number in it alone, so that a repeated task has the same.
        """
        return normals(self._key(stream), self.offset, self.count)

    def uniforms(self, stream: str = "") -> Floats:
        """Return a uniform random number from 0 to 1 for each number: see :meth:`normals`."""
        return uniforms(self._key(stream), self.offset, self.count)

    def laplaces(self, stream: str = "") -> Floats:
        """Return a Laplace number of scale 1 for each number: see :meth:`normals`."""
        return laplaces(self._key(stream), self.offset, self.count)

    def _key(self, stream: str) -> bytes:
        return filter_key(self.passage, self.place, stream, self.tensor)


def filter_key(passage: Passage, place: int, *parts: str) -> bytes:
    """Return the key of random numbers for a filter in a passage."""
    return stream_key("filters", passage.seed, passage.direction, place, *parts)


class BlockFilter(Protocol):
    """Filter that is ready for a model: a function of a block's numbers."""

    def __call__(self, values: Floats, block: Block, /) -> Floats:
        """Return the numbers that leave, as many as came."""
        ...


class Values(NamedTuple):
    """Numbers of a model that filters change: its floating point tensors.

    Attributes:
        tensors: The tensors, in the order of their bytes, with their places in the unfiltered body.
        block: Function from a tensor and the index of a block in it to the block's float64 numbers,
            in an array of the caller's own.
    """

    tensors: Sequence[TensorInfo]
    block: Callable[[TensorInfo, int], Floats]


def numbers_of(spec: TensorInfo) -> int:
    """Return the count of a tensor's numbers; a complex element is two."""
    return spec.nbytes // unit(spec.dtype)


def blocks_of(values: Values, *, scalars: bool = True) -> Iterator[tuple[TensorInfo, int]]:
    """Yield every block of a model, as a tensor and the block's index in it."""
    for spec in values.tensors:
        if scalars or spec.shape:
            for index in range(-(-numbers_of(spec) // BLOCK)):
                yield spec, index


def block_at(spec: TensorInfo, index: int, passage: Passage, place: int) -> Block:
    """Return a tensor's block for the filter at a place of its direction."""
    offset = index * BLOCK
    count = min(BLOCK, numbers_of(spec) - offset)
    return Block(spec.name, spec.shape, offset, count, passage, place)
