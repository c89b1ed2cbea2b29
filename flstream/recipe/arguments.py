"""Arguments of recipes: the type of each, and the key of a job file that it becomes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from flstream.errors import UsageError
from flstream.recipe.initial_model import code_place, initial_model
from flstream.report.console import make_console
from flstream.text import shortened

STREAMING_KEYS = (
    "tensor_download_chunk_size",
    "np_download_chunk_size",
    "streaming_per_request_timeout",
)
"""Flat keys of ``config_fed_server`` and ``add_server_config`` that ``streaming`` has, too."""

UNNEEDED: Mapping[str, str] = {
    name: reason
    for reason, names in {
        "what is lost or damaged is fetched again": "max_resends",
        "a script's end is waited for, and its site's process ends with it": "shutdown_timeout",
        "a site frees what it has sent": "client_memory_gc_rounds cuda_empty_cache",
        "a site's script runs for the whole job": "launch_once",
        "a task reaches its site at once, without being asked for": "get_task_timeout",
        "models are in the run directory": "best_model_filename save_filename",
        "models move in chunks, always and both ways": "tensor_streaming",
        "streaming.streaming_per_request_timeout bounds each request": "min_download_timeout "
        "np_min_download_timeout tensor_min_download_timeout",
        "the server fetches an update while it folds": "submit_task_result_timeout "
        "download_complete_timeout",
        "the server never has a model in memory": "enable_tensor_disk_offload "
        "server_memory_gc_rounds",
    }.items()
    for name in names.split()
}
"""Arguments and flat keys of NVFlare without a counterpart, and why none is needed."""

PLAIN_COMMAND = re.compile(r"\s*(python3?(\.\d+)?(\s+-u)?)?\s*")
"""Launch commands that only start Python, as every site has a process of its own."""


class ExchangeFormat(StrEnum):
    """Arrays that a training script receives, and the library that it computes with."""

    PYTORCH = "pytorch"
    NUMPY = "numpy"
    RAW = "raw"


FrameworkType = ExchangeFormat


class TransferType(StrEnum):
    """Form of an update: the new weights, or their difference from the received ones."""

    FULL = "FULL"
    DIFF = "DIFF"


@cache
def notice(text: str) -> None:
    """Print a line on stdout, unless this process has printed it before."""
    make_console().print(f"flstream: {text}", style="dim", soft_wrap=True)


def component(value: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return the section of a job file for a type, or ``{"type": ..., "args": {...}}``."""
    section = {"type": value} if isinstance(value, str) else dict(value)
    args: Any = section.pop("args", {})
    if not isinstance(section.get("type"), str) or not isinstance(args, Mapping):
        raise ValueError('give a type, or {"type": "name", "args": {...}}')
    return {**section, "args": dict(args)} if args else section


def sgd_section(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``server_optimizer`` for torch's SGD, or for its arguments alone."""
    name = str(optimizer.get("path", optimizer.get("name", "")))
    args = optimizer.get("args", {}) if name else optimizer
    if name.rpartition(".")[2] not in ("", "SGD") or args.keys() - {"lr", "momentum"}:
        raise ValueError(
            "server_optimizer has formulas of its own: give lr and momentum of torch.optim.SGD "
            'alone, or server_optimizer={"type": "fedadam"}'
        )
    values = {"learning_rate": args.get("lr", 1.0), "beta_1": args.get("momentum", 0.0)}
    return component({"type": "fedavgm", "args": values})


def _aggregation(value: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, str):
        return {"method": value}
    return {"method": value.get("type"), **value.get("args", {})}


def _order(value: str | Sequence[str]) -> str | list[str]:
    return value.lower() if isinstance(value, str) else list(value)


def _in_full(value: TransferType) -> None:
    if value is TransferType.DIFF:
        notice("params_transfer_type = DIFF: updates travel in full, to the same mean")


def _no_schedule(value: Any) -> None:
    if value:
        raise ValueError("server_optimizer.args.learning_rate is one number; leave it out")


_Patterns = AfterValidator(lambda value: [value] if isinstance(value, str) else list(value))
_Arrays = AfterValidator(lambda value: None if value == "pytorch" else "numpy")
_Launcher = AfterValidator(lambda text: None if PLAIN_COMMAND.fullmatch(text) else text)
_Mode = AfterValidator({True: "min", False: "max"}.get)


class RecipeArguments(TypedDict, total=False):
    """Arguments of recipes, each with its type and the key of a job file that it becomes.

    They have NVFlare's names; ``learner``, ``server_optimizer`` and ``config`` are flstream's own.
    """

    name: str
    model: Annotated[Any, AfterValidator(initial_model), "model"]
    initial_model: Annotated[Any, AfterValidator(initial_model), "model"]
    initial_ckpt: Annotated[str | Path, AfterValidator(str), "model.initial"]
    eval_ckpt: Annotated[str | Path, AfterValidator(str), "model.initial"]
    min_clients: Annotated[int, "clients.per_round"]
    num_rounds: Annotated[int, "rounds"]
    train_script: Annotated[str | Path, AfterValidator(str), "train.script"]
    train_args: Annotated[str | Mapping[str, Any], "train.args"]
    eval_script: Annotated[str | Path, AfterValidator(str), "train.script"]
    eval_args: Annotated[str | Mapping[str, Any], "train.args"]
    learner: Annotated[str | type, AfterValidator(code_place), "train.learner"]
    launch_external_process: bool
    command: Annotated[str, _Launcher, "train.command"]
    framework: Annotated[FrameworkType, _Arrays, "train.exchange_format"]
    server_expected_format: ExchangeFormat
    params_transfer_type: Annotated[TransferType, AfterValidator(_in_full)]
    per_site_config: Mapping[str, Mapping[str, Any]]
    aggregator: Annotated[str | Mapping[str, Any], AfterValidator(_aggregation), "aggregation"]
    aggregation_weights: Annotated[Mapping[str, float], "aggregation.weights"]
    exclude_vars: Annotated[str | Sequence[str], _Patterns, "aggregation.exclude"]
    key_metric: Annotated[str, "workflow.args.key_metric"]
    negate_key_metric: Annotated[bool, _Mode, "workflow.args.key_metric_mode"]
    stop_cond: Annotated[str, "stop_when"]
    patience: Annotated[int, "patience"]
    server_optimizer: Annotated[
        str | Mapping[str, Any], AfterValidator(component), "server_optimizer"
    ]
    optimizer_args: Annotated[Mapping[str, Any], AfterValidator(sgd_section), "server_optimizer"]
    lr_scheduler_args: Annotated[Any, AfterValidator(_no_schedule)]
    fedprox_mu: Annotated[float, Field(ge=0, allow_inf_nan=False), "workflow.args.fedprox_mu"]
    order: Annotated[str | Sequence[str], AfterValidator(_order), "workflow.args.order"]
    start_task_timeout: Annotated[float, "workflow.args.start_task_timeout"]
    progress_timeout: Annotated[float, "workflow.args.progress_timeout"]
    validation_timeout: Annotated[float, "workflow.args.eval_task_timeout"]
    do_cross_site_eval: bool
    cross_site_eval_timeout: float
    config: Mapping[str, Any]


def recipe_values(owner: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked and converted arguments by name, but for those that ask for nothing.

    Raises:
        UsageError: An argument is unknown or of another type; the message names all such.
    """
    values, mistakes = {}, []
    for name, value in arguments.items():
        if name in UNNEEDED:
            notice(f"{name} is not needed: {UNNEEDED[name]}")
        elif name not in argument_types():
            mistakes.append(f"there is no argument {name}; {nearest(name, argument_types())}")
        elif value is not None:
            try:
                values[name] = TypeAdapter(argument_types()[name]).validate_python(value)
            except ValidationError as error:
                reasons = [line["msg"].removeprefix("Value error, ") for line in error.errors()]
                shown = shortened(repr(value), 60)
                mistakes.append(f"{name} is {shown}: {' or '.join(reasons)}")
    if mistakes:
        raise UsageError(f"{owner}: {'; '.join(mistakes)}")
    return {name: value for name, value in values.items() if value is not None}


@cache
def argument_types() -> Mapping[str, Any]:
    """Return the annotations of all arguments, by name."""
    return get_type_hints(RecipeArguments, include_extras=True)


def key_of(name: str) -> str:
    """Return the dotted key that an argument becomes; empty where it is no key's value."""
    return next((key for key in get_args(argument_types()[name]) if isinstance(key, str)), "")


def nearest(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest name, or list all names."""
    near = get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def by_name(text: str, owner: str) -> dict[str, Any]:
    """Return the words of a command line, such as ``--lr 0.1``, as arguments by name."""
    values: dict[str, list[str]] = {}
    try:
        for word in shlex.split(text):
            name, equals, value = word.removeprefix("--").partition("=")
            if re.match("--[A-Za-z0-9]", word) and name not in values:
                values[name] = [value] if equals else []
            elif not values or re.match(r"-(?!\.?\d)", word):
                raise ValueError(f"{word} belongs to no --name, or comes twice")
            else:
                values[next(reversed(values))].append(word)
    except ValueError as error:
        reason = "write --name value, quoted as on a shell, and each name once"
        raise UsageError(f"{owner} {text!r}: {error}; {reason}") from None
    return {
        name: (words[0] if len(words) == 1 else words) or True for name, words in values.items()
    }


def metric_mode(key_metric: str, stop_cond: str | None) -> Literal["max", "min"]:
    """Return whether the largest value of a metric is the best, or the smallest, as of losses."""
    condition = re.match(r"\s*([^\s<>=]+)\s*([<>])", stop_cond or "")
    if condition is not None and condition[1] == key_metric:
        return "min" if condition[2] == "<" else "max"
    return "min" if re.search("loss|perplexity", key_metric, re.IGNORECASE) else "max"


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key by its dotted name; a section is merged into the one that is there."""
    first, dot, rest = key.partition(".")
    section = values.get(first)
    inner = dict(section) if isinstance(section, Mapping) else {}
    if dot:
        put(inner, rest, value)
        values[first] = inner
    else:
        values[first] = {**inner, **value} if isinstance(value, Mapping) else value
