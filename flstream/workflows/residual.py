"""Common parts of workflows whose LoRA adapters have a residual beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from flstream.workflows import WorkflowArgs


class ResidualArgs(WorkflowArgs):
    """Arguments of workflows with a residual."""

    rank: Annotated[int, Field(ge=1)] | None = None
    """The rank of the residual of each layer; null is that of the adapter, times sites of a round.

    That holds one round exactly. What later rounds add beyond it is cut off by a singular value
    decomposition, and `lost_squared` in the journal says how much.
    """


class LayersWithResidual:
    """Groups of a layer's factors and those of its residual."""

    def groups(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return each layer's factors, and those of its residual."""
        from flstream.aggregation.low_rank import pairs_with_residual

        return pairs_with_residual(names)
