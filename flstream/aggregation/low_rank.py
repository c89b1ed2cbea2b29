"""Sums of products of factors, computed without any whole product.

All is in float64, by torch's LAPACK on one thread: the number of threads would change last bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from flstream.aggregation.elements import Array
from flstream.aggregation.fold_rule import GroupUpdate, TensorGroup
from flstream.errors import UpdateRefusedError
from flstream.job.bodies import RESIDUAL
from flstream.model.joined import joint_name
from flstream.model.lora import LoraPair, check_matrices, lora_pairs, residual_pair

_ROUNDING = 2.0**-52


class Factors(NamedTuple):
    """Factors of a matrix ``left @ right``.

    Attributes:
        left: float64 of shape (outputs, rank).
        right: float64 of shape (rank, inputs).
    """

    left: Array
    right: Array

    @classmethod
    def stacked(cls, parts: Sequence[Factors]) -> Factors:
        """Return factors of a sum of matrices, without what adds nothing."""
        left = np.concatenate([part.left for part in parts], axis=1)
        right = np.concatenate([part.right for part in parts], axis=0)
        counts = left.any(axis=0) & right.any(axis=1)
        return cls(left[:, counts], right[counts])

    @classmethod
    def mean(cls, parts: Sequence[Factors], shares: Sequence[float]) -> Factors:
        """Return the mean of each factor, of shares whose sum is 1."""
        left, right = (np.zeros_like(factor) for factor in parts[0])
        for part, share in zip(parts, shares, strict=True):
            left += share * part.left
            right += share * part.right
        return cls(left, right)

    def begun_anew(self) -> Factors:
        """Return factors of zero with the right one as it is, as LoRA begins."""
        return Factors(np.zeros_like(self.left), self.right)

    @property
    def rank(self) -> int:
        """Number of columns of the left factor."""
        return int(self.left.shape[1])

    def padded(self, rank: int) -> Factors:
        """Return the same matrix's factors of a larger rank."""
        more = rank - self.rank
        return Factors(
            np.pad(self.left, ((0, 0), (0, more))), np.pad(self.right, ((0, more), (0, 0)))
        )

    def best(self, rank: int) -> tuple[Factors, float]:
        """Return factors of the nearest matrix of a rank, and the squared distance.

        Both have orthogonal columns or rows, by falling singular value, whose root is their norm.
        The distance is that of Frobenius.
        """
        if not self.rank:
            return self.padded(rank), 0.0
        with on_one_thread() as torch:
            left, right = torch.from_numpy(self.left), torch.from_numpy(self.right.T.copy())
            left_basis, left_part = torch.linalg.qr(left)
            right_basis, right_part = torch.linalg.qr(right)
            inner = torch.linalg.svd(left_part @ right_part.T, full_matrices=False)
            # What is below the rounding of the largest is 0: its vectors would be of any direction.
            values = inner.S * (inner.S[0] * len(inner.S) * _ROUNDING < inner.S)
            roots = values[:rank].sqrt()
            near = Factors(
                (left_basis @ (inner.U[:, :rank] * roots)).numpy(),
                ((roots[:, None] * inner.Vh[:rank]) @ right_basis.T).numpy(),
            )
            lost = math.fsum((values[rank:] ** 2).tolist())
        return near.padded(rank), lost

    def squared_norm(self) -> float:
        """Return the squared Frobenius norm of the matrix."""
        with on_one_thread() as torch:
            left, right = torch.from_numpy(self.left), torch.from_numpy(self.right)
            return float(((left.T @ left) * (right @ right.T)).sum())


class LoraGroup(NamedTuple):
    """A layer's pair of factors in a fold, with its residual.

    Attributes:
        pair: Names of the factors.
        residual: Names of the residual's in the joint body.
        base: The factors in the model that sites started from.
        sent: Those of the updates.
        shares: Weights of the updates, whose sum is 1.
    """

    pair: LoraPair
    residual: LoraPair
    base: Factors
    sent: Sequence[Factors]
    shares: Sequence[float]

    @classmethod
    def of(cls, group: TensorGroup, updates: Sequence[GroupUpdate]) -> LoraGroup:
        """Return the pair of a group.

        Raises:
            UpdateRefusedError: An update has one of the factors alone.
            LayoutError: The layer is no linear one.
        """
        ((layer, pair),) = lora_pairs(group.base).items()
        check_matrices({name: group.base[name].shape for name in pair})
        for update in updates:
            if len(update.tensors) < len(pair):
                raise UpdateRefusedError(
                    update.site,
                    f"has one factor alone of the LoRA pair {layer!r}; send both, or none",
                )
        total = sum(update.weight for update in updates)
        return cls(
            pair,
            joint_pair(layer),
            Factors(group.base[pair.b], group.base[pair.a]),
            [Factors(update.tensors[pair.b], update.tensors[pair.a]) for update in updates],
            [update.weight / total for update in updates],
        )

    def changed(
        self, group: TensorGroup, new: Factors, rest: Sequence[Factors]
    ) -> Mapping[str, Array]:
        """Return the group's tensors: new factors, and a residual to which a rest is added.

        What a residual of its rank cannot hold is lost, and logged.
        """
        old = Factors(group.base[self.residual.b], group.base[self.residual.a])
        added, rank = Factors.stacked(rest), old.rank
        residual, lost = Factors.stacked([old, added]), 0.0
        if residual.rank > rank:
            residual, lost = residual.best(rank)
        group.log("residual_squared", added.squared_norm())
        group.log("lost_squared", lost)
        whole = residual.padded(rank)
        return {
            self.pair.a: new.right,
            self.pair.b: new.left,
            self.residual.a: whole.right,
            self.residual.b: whole.left,
        }


def joint_pair(layer: str) -> LoraPair:
    """Return the names of a layer's residual in the joint body."""
    return LoraPair(*(joint_name(RESIDUAL, name) for name in residual_pair(layer)))


def pairs_with_residual(names: Sequence[str]) -> dict[str, list[str]]:
    """Return groups of the factors and the residual's, by layer."""
    return {layer: [*pair, *joint_pair(layer)] for layer, pair in lora_pairs(names).items()}


def residual_shapes(
    shapes: Mapping[str, Sequence[int]], sites: int, rank: int | None
) -> dict[str, tuple[int, int]]:
    """Return the shapes of residuals by name.

    Args:
        shapes: Shapes of the model's tensors.
        sites: Number of sites of a round.
        rank: Rank of the residuals; None for that of the adapter, times ``sites``.

    Raises:
        LayoutError: There is no pair of factors, or a layer is no linear one.
    """
    residuals: dict[str, tuple[int, int]] = {}
    for layer, pair in lora_pairs(shapes).items():
        check_matrices({name: shapes[name] for name in pair})
        (own, inputs), (outputs, _) = shapes[pair.a], shapes[pair.b]
        most = min(sites * own if rank is None else rank, inputs, outputs)
        names = residual_pair(layer)
        residuals |= {names.a: (most, inputs), names.b: (outputs, most)}
    return residuals


@contextmanager
def on_one_thread() -> Iterator[Any]:
    """Yield torch, on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield torch
    finally:
        torch.set_num_threads(threads)
