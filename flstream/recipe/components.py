"""Components of jobs under NVFlare's names: dicts of a recipe's arguments, or of a filter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from flstream.recipe.arguments import checked

Section = dict[str, Any]


class FilterType(StrEnum):
    """Values that a filter is applied to: models that sites receive, or their answers."""

    TASK_DATA = "task_data"
    TASK_RESULT = "task_result"


def FedAvg(num_clients: int | None = None, num_rounds: int = 5, **arguments: Any) -> Section:
    """Return federated averaging (McMahan et al. 2017), with arguments of ``FedAvgRecipe``."""
    return {"min_clients": num_clients, "num_rounds": num_rounds, **arguments}


PTFedAvg = FedAvg


@checked
def PTModel(model: Any, initial_ckpt: str | Path | None = None) -> Section:
    """Return the job's initial model, and the path of a file with its weights."""
    return {"model": model, "initial_ckpt": initial_ckpt}


@checked
def ScriptRunner(script: str | Path, script_args: str = "", **arguments: Any) -> Section:
    """Return the script of all sites or of one, with arguments of ``FedAvgRecipe``."""
    return {"train_script": script, "train_args": script_args, **arguments}


def IntimeModelSelector(
    key_metric: str | None = None, negate_key_metric: bool | None = None
) -> Section:
    """Return the metric that decides which round is the best; negated, its smallest value is."""
    return {"key_metric": key_metric, "negate_key_metric": negate_key_metric}


def TensorServerStreamer() -> Section:
    """Return the streaming of tensors, which is always on."""
    return {"tensor_streaming": True}


TensorClientStreamer = TensorServerStreamer


def PercentilePrivacy(percentile: float = 10, gamma: float = 0.01) -> Section:
    """Return the filter that shares the largest changes alone (Shokri and Shmatikov 2015)."""
    return {"type": "percentile_privacy", "args": {"percentile": percentile, "gamma": gamma}}


def SVTPrivacy(**args: float) -> Section:
    """Return the filter that shares a noisy choice of changes (Li et al. 2019)."""
    return {"type": "svt_privacy", "args": args}


@checked
def ExcludeVars(exclude_vars: Sequence[str] | str) -> Section:
    """Return the filter that leaves tensors out: whole names, or one regular expression."""
    return {"type": "exclude_vars", "args": {"exclude_vars": exclude_vars}}


@checked
def Gaussian(sigma: float) -> Section:
    """Return the filter that adds Gaussian noise to every number, which NVFlare has not."""
    return {"type": "gaussian", "args": {"sigma": sigma}}
