"""Arguments of the Python face: their types, and their keys in a job file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError, validate_call

from flstream.errors import UsageError
from flstream.job.hocon import TYPE_KEYS
from flstream.recipe.initial_model import code_place, initial_model
from flstream.recipe.nvflare_table import ARGUMENTS
from flstream.report.console import make_console

P = ParamSpec("P")
R = TypeVar("R")

PLACES = SERVER, ALL_SITES = "server", "@ALL"
"""Names in NVFlare's jobs that stand for the server, and for all sites."""

STREAMING_KEYS = (
    *("tensor_download_chunk_size", "np_download_chunk_size"),
    "streaming_per_request_timeout",
)
"""Flat keys of ``config_fed_server`` and ``add_server_config`` that ``streaming`` has, too."""

_PLAIN_COMMAND = re.compile(r"\s*(python3?(\.\d+)?(\s+-u)?)?\s*")
"""Launch commands that only start Python, as every site has a process of its own."""

ExchangeFormat = StrEnum("ExchangeFormat", ["PYTORCH", "NUMPY", "RAW"])
"""Arrays that a training script receives, and the library that it computes with."""

FrameworkType = ExchangeFormat

TransferType = StrEnum("TransferType", ["FULL", "DIFF"])
"""Form of an update in NVFlare; here it is whole, to the same mean."""


DataKind = StrEnum("DataKind", ["FL_MODEL", "WEIGHTS", "WEIGHT_DIFF", "METRICS"])
"""Content of an answer in NVFlare; here it is the tensors that a site sends."""

JobMetaKey = StrEnum("JobMetaKey", ["RESOURCE_SPEC", "SCOPE", "CUSTOM_PROPS", "JOB_LAUNCHER_SPEC"])
"""Keys of a job's meta file in NVFlare, which a deployment reads."""


class FilterType(StrEnum):
    """Values for a filter: models that sites receive, or their answers."""

    TASK_DATA = "task_data"
    TASK_RESULT = "task_result"


def _aggregation(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"method": value}
    if isinstance(value, Mapping):
        return {"method": value.get("type"), "args": value.get("args", {})}
    if isinstance(value, type) or not callable(getattr(value, "combine", None)):
        raise ValueError(
            f"an object of {type(value).__name__}; write its rule as a class, and give its place, "
            'such as "mine.py:Median", or an object of a class derived from ModelAggregator'
        )
    return {"method": code_place(type(value)), "args": _constructor_arguments(value)}


def form_of_updates(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments of an aggregator object that say what it is given, by a recipe's."""
    form = {}
    if str(values.get("params_transfer_type", "")).upper() == "DIFF":
        form["params_type"] = "DIFF"
    if values.get("server_expected_format") == ExchangeFormat.PYTORCH:
        form["framework"] = "pytorch"
    return form


def _constructor_arguments(instance: object) -> dict[str, Any]:
    """Return the arguments that an object was made with, by its attributes of their names."""
    args = {}
    for name, parameter in signature(type(instance).__init__).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(instance, name, getattr(instance, f"_{name}", parameter.default))
        if value is parameter.empty:
            raise ValueError(
                f"an object of {type(instance).__name__}, which a run makes anew, and which has no "
                f"attribute {name} with that argument of its constructor; keep it as self.{name}"
            )
        if value is not parameter.default:
            args[name] = value
    return args


def _sgd(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``server_optimizer`` for torch's SGD, or for its arguments alone."""
    name = str(optimizer.get("path", optimizer.get("name", "")))
    args = optimizer.get("args", {}) if name else optimizer
    if name.rpartition(".")[2] not in ("", "SGD"):
        raise ValueError(
            f"{name} has no counterpart here: server_optimizer has formulas of its own; give "
            'torch.optim.SGD, or server_optimizer={"type": "fedadam"}'
        )
    if unknown := sorted(args.keys() - {"lr", "momentum", "nesterov"}):
        raise ValueError(
            f"{', '.join(unknown)} of torch.optim.SGD has no counterpart in server_optimizer; give "
            "lr, momentum and nesterov alone"
        )
    kind = "nesterov" if args.get("nesterov", False) else "fedavgm"
    values = {"learning_rate": args.get("lr", 1.0), "beta_1": args.get("momentum", 0.0)}
    return {"type": kind, "args": values}


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "model": initial_model,
    **dict.fromkeys(("initial_ckpt", "eval_ckpt", "train_script", "eval_script"), str),
    "learner": code_place,
    "command": lambda text: None if _PLAIN_COMMAND.fullmatch(text) else text,
    "framework": lambda name: None if name == "pytorch" else "numpy",
    "aggregator": _aggregation,
    "key_metric": lambda name: name or None,
    "exclude_vars": lambda value: [value] if isinstance(value, str) else value,
    "negate_key_metric": lambda is_negated: "min" if is_negated else "max",
    "optimizer_args": _sgd,
    "order": lambda value: value.lower() if isinstance(value, str) else value,
}
"""Functions that make a key's value of an argument; others are taken as they are."""


class RecipeArguments(TypedDict, total=False):
    """Arguments of recipes, each with its type and its key in a job file.

    They have NVFlare's names; ``learner``, ``server_optimizer`` and ``config`` are flstream's own.

    Attributes:
        name: Name of the job; by default, that of the workflow.
        model: Model's factory: ``"module:callable"``, ``{"class_path": "model.Net", "args":
            {"width": 16}}``, or a function or class of a file. Or an instance (a module, or tensors
            by name), whose weights are the initial ones.
        initial_ckpt: Path of a file with the initial weights, in place of those of ``model``.
        eval_ckpt: Path of a file with the weights to evaluate.
        min_clients: Number of sites in a round; also of all sites, unless ``SimEnv`` says more.
        num_rounds: Number of rounds; by default 2.
        train_script: Path of the script that sites run.
        train_args: Arguments of the script or learner: words as on a shell (``"--lr 0.1"``), or
            values by name.
        eval_script: Path of the script that scores models, of ``FedEvalRecipe``.
        eval_args: Arguments of that script.
        learner: Class in place of a script, as ``"module:Class"`` or itself.
        launch_external_process: Whether ``command`` counts.
        command: Command that starts the script, such as ``"torchrun --nproc_per_node=2"``.
        server_expected_format: Kind of arrays that an ``aggregator`` object is given; without
            effect otherwise.
        framework: Kind of arrays that the script receives: ``pytorch`` or ``numpy``.
        per_site_config: Arguments of a site's own: by site, ``{"train_args": "--lr 0.2"}``.
        aggregator: Aggregation by its name, as ``{"type": "krum", "args": {"byzantine": 1}}``, or a
            class of your own with the type ``"mine.py:Krum"``; or an object of a class that is
            derived from NVFlare's ``ModelAggregator``.
        aggregation_weights: Factor of a site's weight in the mean, by site.
        exclude_vars: Regular expressions: a tensor in whose name one is found keeps its value.
        key_metric: Metric that decides which round was the best; empty for the default one.
        key_metric_mode: Which value of that metric is the best one: ``max`` or ``min``.
        negate_key_metric: Whether the smallest value of that metric is the best one.
        stop_cond: Condition that ends the job, such as ``"accuracy >= 0.97"``.
        patience: Number of evaluations without a new best metric after which the job ends.
        server_optimizer: Server optimizer by its name, or as ``{"type": "fedadam", "args": {}}``.
        optimizer_args: Server optimizer as torch's SGD: ``{"lr": 0.7, "momentum": 0.9, "nesterov":
            True}``.
        fedprox_mu: Weight of FedProx's proximal term.
        order: Order of the sites of ``CyclicRecipe``.
        start_task_timeout: Seconds in which a site of ``SwarmLearningRecipe`` has to acknowledge a
            task.
        progress_timeout: Seconds after which a swarm fails from whose sites nothing comes.
        validation_timeout: Seconds that a site may take to score a model.
        do_cross_site_eval: Whether every site scores every model after the training.
        cross_site_eval_timeout: Seconds that a site may take then to score one model; 300 by
            default.
        config: Values of any keys of the job file by their dotted names, such as ``{"seed": 7}``.
    """

    name: str
    model: Annotated[Any, "model"]
    initial_ckpt: Annotated[str | Path, "model.initial"]
    eval_ckpt: Annotated[str | Path, "model.initial"]
    min_clients: Annotated[int, "clients.per_round"]
    num_rounds: Annotated[int, "rounds"]
    train_script: Annotated[str | Path, "train.script"]
    train_args: Annotated[str | Mapping[str, Any], "train.args"]
    eval_script: Annotated[str | Path, "train.script"]
    eval_args: Annotated[str | Mapping[str, Any], "train.args"]
    learner: Annotated[str | type, "train.learner"]
    launch_external_process: bool
    command: Annotated[str, "train.command"]
    server_expected_format: ExchangeFormat
    framework: Annotated[ExchangeFormat, "train.exchange_format"]
    per_site_config: Mapping[str, Mapping[str, str | Mapping[str, Any]]]
    aggregator: Annotated[Any, "aggregation"]
    aggregation_weights: Annotated[Mapping[str, float], "aggregation.weights"]
    exclude_vars: Annotated[str | Sequence[str], "aggregation.exclude"]
    key_metric: Annotated[str, "workflow.args.key_metric"]
    key_metric_mode: Annotated[str, "workflow.args.key_metric_mode"]
    negate_key_metric: Annotated[bool, "workflow.args.key_metric_mode"]
    stop_cond: Annotated[str, "stop_when"]
    patience: Annotated[int, "patience"]
    server_optimizer: Annotated[str | Mapping[str, Any], "server_optimizer"]
    optimizer_args: Annotated[Mapping[str, Any], "server_optimizer"]
    fedprox_mu: Annotated[float, "workflow.args.fedprox_mu"]
    order: Annotated[str | Sequence[str], "workflow.args.order"]
    start_task_timeout: Annotated[float, "workflow.args.start_task_timeout"]
    progress_timeout: Annotated[float, "workflow.args.progress_timeout"]
    validation_timeout: Annotated[float, "workflow.args.eval_task_timeout"]
    do_cross_site_eval: bool
    cross_site_eval_timeout: float
    config: Mapping[str, Any]


KEYS: Mapping[str, str] = {
    name: next((key for key in get_args(hint) if isinstance(key, str)), "")
    for name, hint in get_type_hints(RecipeArguments, include_extras=True).items()
}
"""Dotted keys by arguments of recipes; empty for one that is no key's value."""


# Arguments that no key's rule checks.
_SIMPLE: Mapping[str, TypeAdapter[Any]] = {
    name: TypeAdapter(hint)
    for name, hint in get_type_hints(RecipeArguments).items()
    if hint in (bool, ExchangeFormat) or (hint is float and not KEYS[name])
}


def converted(name: str, value: Any) -> Any:
    """Return the value of an argument's key; None for an argument that sets nothing.

    A ValueError names the type of an argument of another type.
    """
    if name in _SIMPLE and value is not None:
        try:
            value = _SIMPLE[name].validate_python(value)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from None
    return _CONVERSIONS[name](value) if name in _CONVERSIONS and value is not None else value


def is_needed(name: str) -> bool:
    """Return whether an argument counts here; print a line where it does not."""
    if name in KEYS or ARGUMENTS.get(name) != "":
        return True
    notice(f"{name} is not needed, and was left out")
    return False


@cache
def notice(text: str) -> None:
    """Print a line on stdout, once in this process."""
    make_console().print(f"flstream: {text}", style="dim", soft_wrap=True)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse calls with missing or unknown arguments, or arguments of other types."""
    owner, parameters = function.__qualname__.removesuffix(".__init__"), signature(function)
    names = [*parameters.parameters]
    validated: Callable[..., R] = validate_call(config={"arbitrary_types_allowed": True})(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            parameters.bind(*args, **kwargs)
        except TypeError as error:
            own = ", ".join(name for name in names if name != "self")
            raise UsageError(f"{owner}: {error}; its arguments are {own}") from None
        try:
            return validated(*args, **kwargs)
        except ValidationError as error:
            clauses: dict[str, str] = {}
            for detail in error.errors(include_url=False):
                place = detail["loc"][0]
                name = names[place] if isinstance(place, int) else str(place)
                clauses.setdefault(name, f"{name} is {detail['input']!r}: {detail['msg']}")
            raise UsageError(f"{owner}: {'; '.join(clauses.values())}") from None

    return call


def expect_known(name: str) -> None:
    """Refuse an unknown argument of a recipe, with the reason or the nearest name."""
    near = get_close_matches(name, KEYS, n=1)
    reason = f"did you mean {near[0]}?" if near else f"there are {', '.join(KEYS)}"
    if name not in KEYS:
        target = ARGUMENTS.get(name, "")
        reason = target.removeprefix("- ") if target.startswith("-") else reason
        raise ValueError(f"there is no such argument; {reason}")


def by_name(words: str | Mapping[str, Any], site: str) -> Mapping[str, Any]:
    """Return a site's command line words, such as ``--lr 0.1``, as arguments by name."""
    if not isinstance(words, str):
        return words
    values: dict[str, list[str]] = {}
    try:
        for word in shlex.split(words):
            name, equals, value = word.removeprefix("--").partition("=")
            if re.match("--[A-Za-z0-9]", word) and name not in values:
                values[name] = [value] if equals else []
            elif not values or re.match(r"-(?!\.?\d)", word):
                raise ValueError(f"{word} belongs to no --name, or comes twice")
            else:
                values[next(reversed(values))].append(word)
    except ValueError as error:
        raise UsageError(
            f"the arguments of {site}, {words!r}: {error}; write --name value, quoted as on a "
            "shell, and each name once"
        ) from None
    return {
        name: True if not texts else texts[0] if len(texts) == 1 else texts
        for name, texts in values.items()
    }


def metric_mode(key_metric: str, stop_cond: str | None) -> Literal["max", "min"]:
    """Return whether a metric's largest or smallest value is the best."""
    condition = re.match(r"\s*([^\s<>=]+)\s*([<>])", stop_cond or "")
    if condition is not None and condition[1] == key_metric:
        return "min" if condition[2] == "<" else "max"
    return "min" if re.search("loss|perplexity", key_metric, re.IGNORECASE) else "max"


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key by its dotted name; merge a section into an earlier one.

    One of another type replaces it, as its arguments are others; workflows share most of theirs.
    """
    first, dot, rest = key.partition(".")
    section = values.get(first)
    if isinstance(section, str):  # the name of a type alone
        section = {TYPE_KEYS.get(first, "type"): section}
    inner = dict(section) if isinstance(section, Mapping) else {}
    if dot:
        put(inner, rest, value)
        values[first] = inner
    elif isinstance(value, Mapping):
        is_other = first != "workflow" and inner.get("type", value.get("type")) != value.get("type")
        values[first] = {**({} if is_other else inner), **value}
    else:
        values[first] = value
