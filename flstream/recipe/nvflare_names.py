"""Names of NVFlare's settings, and what stands for them in a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from flstream.job.conditions import read_condition

STREAMING_KEYS: Mapping[str, str] = {
    "tensor_download_chunk_size": "streaming.tensor_download_chunk_size",
    "np_download_chunk_size": "streaming.np_download_chunk_size",
    "streaming_per_request_timeout": "streaming.streaming_per_request_timeout",
}
"""Keys of a job file by the flat keys of ``config_fed_server`` and ``add_server_config``."""

UNNEEDED_KEYS: Mapping[str, str] = {
    "get_task_timeout": "a task reaches its site at once, without being asked for",
    "submit_task_result_timeout": "the server fetches an update while it folds",
    "max_resends": "a connection on one machine loses nothing; what is damaged is fetched again",
    "tensor_min_download_timeout": "streaming.streaming_per_request_timeout bounds each request",
    "np_min_download_timeout": "streaming.streaming_per_request_timeout bounds each request",
    "download_complete_timeout": "a worker stays until the server has its update",
    "min_download_timeout": "streaming.streaming_per_request_timeout bounds each request",
}
"""Flat keys without a counterpart, and why none is needed."""

UNNEEDED_ARGUMENTS: Mapping[str, str] = {
    "best_model_filename": "the best model is best.safetensors in the run directory",
    "client_memory_gc_rounds": "a site frees what it has sent",
    "cuda_empty_cache": "a site frees what it has sent",
    "enable_tensor_disk_offload": "the server never has a model in memory",
    "launch_once": "a site's script runs for the whole job",
    "save_filename": "the final model is global.safetensors in the run directory",
    "server_memory_gc_rounds": "the server never has a model in memory",
    "shutdown_timeout": "a script's end is waited for",
}
"""Arguments of recipes without a counterpart, and why none is needed."""

MODEL_KEYS = frozenset({"class_path", "path", "args", "config_type"})
"""Keys of a model that is given as a class with its arguments."""

NUMPY_KEY = "numpy_key"
"""Name of the one array of a NumPy model that has no names."""

_SMALLER_IS_BETTER = re.compile(r"loss|perplexity", re.IGNORECASE)


def metric_mode(key_metric: str, stop_cond: str | None) -> Literal["max", "min"]:
    """Return whether the largest or the smallest value of a metric is the best.

    Args:
        key_metric: Name of the metric; losses and perplexities are minimised.
        stop_cond: Condition such as ``loss < 0.5``. If it is on this metric, its sign decides.
    """
    if stop_cond is not None:
        # What is no condition is refused with the job, by its key.
        with suppress(ValueError):
            condition = read_condition(stop_cond)
            if condition.metric == key_metric:
                return "min" if "<" in condition.operator else "max"
    return "min" if _SMALLER_IS_BETTER.search(key_metric) else "max"


def fedavgm_keys(optimizer: object) -> dict[str, Any] | str:
    """Return the keys for torch's SGD on the server, which is what fedavgm computes.

    Args:
        optimizer: ``{"path": "torch.optim.SGD", "args": {...}}``, or the arguments alone.

    Returns:
        Values by key of a job file; or why there are none, as a clause.
    """
    if not isinstance(optimizer, Mapping):
        return "server_optimizer is a section"
    is_class = "path" in optimizer or "name" in optimizer
    named = str(optimizer.get("path", optimizer.get("name", "SGD")))
    args = optimizer.get("args") or {} if is_class else optimizer
    if named.rpartition(".")[2] != "SGD" or not isinstance(args, Mapping):
        return "server_optimizer has formulas of its own for what is not SGD"
    if extra := set(args) - {"lr", "momentum"}:
        return f"server_optimizer has no {', '.join(sorted(extra))}"
    return {
        "server_optimizer.type": "fedavgm",
        "server_optimizer.args.learning_rate": args.get("lr", 1.0),
        "server_optimizer.args.beta_1": args.get("momentum", 0.0),
    }


def class_and_args(model: Mapping[Any, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """Return the factory and the arguments of a model that is given as a class.

    Args:
        model: Keys of :data:`MODEL_KEYS`: ``{"class_path": "model.Net", "args": {...}}``.

    Returns:
        The factory as ``module:name``, and its keyword arguments; None if it is no such model.
    """
    path, args = model.get("class_path", model.get("path")), model.get("args") or {}
    if model.keys() - MODEL_KEYS or not isinstance(path, str) or not isinstance(args, Mapping):
        return None
    module, dot, name = path.rpartition(".")
    return (f"{module}:{name}", args) if dot else None
