"""The base of an adapter with the products of factors added to it, in a new file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flstream.aggregation.low_rank import Factors, on_one_thread
from flstream.codecs.blocks import Blockwise
from flstream.errors import CheckpointError, LayoutError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.dtypes import FLOATS, load, numbers_in, store, unit
from flstream.model.layout import TensorInfo
from flstream.model.lora import layer_in_base, residual_pair
from flstream.model.source import Scratch, view_of

# Numbers of a weight that are changed at a time: with their change and its factors, a few MiB.
_MOST_NUMBERS = 1 << 18


class Scaling(NamedTuple):
    """Scale at which PEFT adds a product of factors to a weight, by ``adapter_config.json``.

    Attributes:
        factor: Number by which the product is multiplied.
        is_transposed: Whether a weight has the inputs first, where its shape does not tell.
    """

    factor: float
    is_transposed: bool

    @classmethod
    def of(cls, config: Path) -> Scaling:
        """Read the scaling of an adapter.

        Raises:
            LayoutError: There is no such file, or layers are scaled in several ways.
        """
        try:
            values = json.loads(config.read_text())
        except (OSError, ValueError) as error:
            raise LayoutError(
                "model.factory returned no adapter of PEFT, whose configuration says by what its "
                "products are scaled, so they cannot be added to the base; set into = factors"
            ) from error
        if values.get("rank_pattern") or values.get("alpha_pattern") or values.get("use_dora"):
            raise LayoutError(
                "the adapter has layers of several ranks or scalings, or of DoRA, so its products "
                "cannot be added to the base; set into = factors"
            )
        rank = math.sqrt(values["r"]) if values.get("use_rslora") else values["r"]
        return cls(values["lora_alpha"] / rank, bool(values.get("fan_in_fan_out")))


def write_merged_base(
    path: Path,
    base: FileSource,
    residual: FileSource,
    scaling: Scaling,
    check: Callable[[], None],
) -> str:
    """Write a base to which the products of a residual are added, and return its body's digest.

    Each sum is made in float64, some rows of a weight at a time, and rounded once. Rows are the
    same on each machine, so the bits are.

    Args:
        path: The new file, with the names and metadata of the base's.
        base: The base.
        residual: Factors by the names of :func:`~flstream.model.lora.residual_pair`.
        scaling: How they are added.
        check: Called now and then; raises to end the work.

    Raises:
        LayoutError: A layer of the residual is none of the base's, or of another shape.
        CheckpointError: The disk does not take it, or a sum is not finite.
    """
    changes = _changes(base, residual, scaling)
    weights = {name: base.layout.by_name[name] for name in changes}
    sizes = {name: _rows(spec) * _row_bytes(spec) for name, spec in weights.items()}
    scratch = Scratch()

    def fill(spec: TensorInfo, index: int, out: memoryview) -> None:
        check()
        offset, row = index * sizes[spec.name], _row_bytes(spec)
        start = spec.start + offset
        data = view_of(base, start, start + len(out), scratch)
        _add(spec, data, changes[spec.name], offset // row, len(out) // row, out)

    return write_checkpoint(path, Blockwise(base, base.layout, sizes, fill), base.metadata)


def _changes(base: FileSource, residual: FileSource, scaling: Scaling) -> dict[str, Factors]:
    """Return the factors of each weight's change, by its name in the base."""
    ends = residual_pair("").b
    changes = {}
    for name in residual.layout.by_name:
        layer = name.removesuffix(ends)
        if layer == name:
            continue
        pair, weight = residual_pair(layer), f"{layer_in_base(layer)}.weight"
        factor_b, factor_a = (_matrix(residual, factor) for factor in (pair.b, pair.a))
        change = Factors(scaling.factor * factor_b, factor_a)
        spec = base.layout.find(weight)
        shape = len(factor_b), factor_a.shape[1]
        if spec is None or spec.dtype not in FLOATS or spec.shape not in (shape, shape[::-1]):
            raise LayoutError(
                f"the residual of {layer!r} changes a weight of shape {list(shape)}, and the base "
                f"has no {weight!r} of that shape; build the adapter around flare.base_model()"
            )
        if spec.shape != shape or (scaling.is_transposed and shape[0] == shape[1]):
            change = Factors(change.right.T.copy(), change.left.T.copy())
        changes[spec.name] = change
    return changes


def _matrix(source: FileSource, name: str) -> Any:
    spec = source.layout.by_name[name]
    matrix = np.empty(spec.nbytes // unit(spec.dtype))
    load(numbers_in(spec.dtype, view_of(source, spec.start, spec.stop, Scratch())), matrix)
    return matrix.reshape(spec.shape)


def _row_bytes(spec: TensorInfo) -> int:
    return spec.nbytes // max(spec.shape[0], 1) if spec.shape else spec.nbytes


def _rows(spec: TensorInfo) -> int:
    return max(_MOST_NUMBERS // max(spec.shape[1], 1), 1)


def _add(
    spec: TensorInfo, data: memoryview, change: Factors, first: int, count: int, out: memoryview
) -> None:
    """Write rows of a weight with their change."""
    with on_one_thread() as torch:
        rows = torch.from_numpy(change.left[first : first + count])
        more = (rows @ torch.from_numpy(change.right)).numpy()
    numbers = np.empty(more.size)
    load(numbers_in(spec.dtype, data), numbers)
    numbers += more.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        store(numbers, numbers_in(spec.dtype, out))
    if not np.isfinite(numbers).all():
        raise CheckpointError(
            f"tensor {spec.name!r} of the base would not be finite; lower the learning rate"
        )
