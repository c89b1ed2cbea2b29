"""Components of jobs under NVFlare's names: dicts of a recipe's arguments, or of a filter."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Any

from flstream.errors import UsageError
from flstream.recipe.arguments import checked, notice


class FilterType(StrEnum):
    """Values that a filter is applied to: models that sites receive, or their answers."""

    TASK_DATA = "task_data"
    TASK_RESULT = "task_result"


class Component(dict[str, Any]):
    """Arguments of a recipe, converted, for :meth:`FedJob.to`.

    Args:
        owner: Name of one of NVFlare's classes.
        names: Names of a recipe's arguments by those that the class has, in order.
        values: Arguments by place.
        named: Arguments by name.

    Raises:
        UsageError: An argument is unknown, or of another type.
    """

    def __init__(self, owner: str, names: Mapping[str, str], *values: Any, **named: Any) -> None:
        if len(values) > len(names):
            raise UsageError(f"{owner} takes at most {len(names)} arguments")
        self.owner = owner
        super().__init__(checked(owner, {**named, **dict(zip(names, values, strict=False))}, names))


class Filter(dict[str, Any]):
    """A filter as a section: ``{"type": ..., "args": {...}}``; docs/filters.md has its arguments.

    Args:
        type: Type of the filter.
        args: Its arguments, by name.
    """

    def __init__(self, type: str, **args: Any) -> None:
        super().__init__(type=type, args=args)


def _same(*names: str) -> dict[str, str]:
    return dict(zip(names, names, strict=True))


_TRAINING = {
    "num_clients": "min_clients",
    **_same("num_rounds", "model", "key_metric", "stop_cond", "patience", "exclude_vars"),
    **_same("aggregation_weights"),
}
_SCRIPT = {
    "script": "train_script",
    "script_args": "train_args",
    **_same("launch_external_process", "command", "framework", "server_expected_format"),
    **_same("params_transfer_type"),
}

FedAvg = partial(Component, "FedAvg", _TRAINING, num_rounds=5)
"""Federated averaging (McMahan et al. 2017, arXiv:1602.05629)."""
PTFedAvg = FedAvg
"""Federated averaging, under the name that it has for PyTorch."""
ScriptRunner = partial(Component, "ScriptRunner", _SCRIPT)
"""The training script of all sites, or of the one that it is added to."""
PTModel = partial(Component, "PTModel", _same("model", "initial_ckpt"))
"""The job's initial model, and a file with its weights."""
IntimeModelSelector = partial(
    Component, "IntimeModelSelector", _same("key_metric", "negate_key_metric")
)
"""The metric that decides which round is the best; negated, its smallest value is."""
TensorServerStreamer = partial(Component, "TensorServerStreamer", {})
"""Tensor streaming of the server, which is always on."""
TensorClientStreamer = partial(Component, "TensorClientStreamer", {})
"""Tensor streaming of the sites, which is always on."""
PercentilePrivacy = partial(Filter, "percentile_privacy")
"""Share of the largest changes alone, each bounded (Shokri and Shmatikov 2015)."""
SVTPrivacy = partial(Filter, "svt_privacy")
"""Share of a noisy choice of changes, with noise (Li et al. 2019, arXiv:1910.00962)."""
ExcludeVars = partial(Filter, "exclude_vars")
"""Tensors that are left out: whole names, or one regular expression."""
Gaussian = partial(Filter, "gaussian")
"""Gaussian noise on every number, which NVFlare has not."""


def say_that_streaming_is_on() -> None:
    """Tell the user that nothing is to be done for models to be streamed."""
    notice(
        "tensor streaming is always on: models move in chunks, both ways "
        "(streaming.tensor_download_chunk_size)"
    )
