"""Components of NVFlare's jobs as objects, by the table that converts its job folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flstream.errors import UsageError
from flstream.recipe import arguments
from flstream.recipe.nvflare import VALUES
from flstream.recipe.nvflare_table import ARGUMENTS, CLASSES

_OBJECTS = {"model": "model", "checkpoint": "initial_ckpt"}
_SECTIONS = {"metric": "workflow.args", "stage": "workflow.args"}
_NOTHING: tuple[Any, ...] = (None, "", False)


class Component(dict[str, Any]):
    """Arguments of a recipe that an object of NVFlare sets; ``config`` has most of them."""


def component(name: str, *unnamed: Any, **values: Any) -> Component:
    """Return what an object of a class of NVFlare sets in a job.

    Raises:
        UsageError: An argument has no counterpart, or no name.
    """
    if unnamed:
        raise UsageError(f"{name} was given {unnamed[0]!r} without a name; name all arguments")
    target, config = CLASSES[name], dict[str, Any]()
    settings = dict(pair.split("=", 1) for pair in target.split() if "=" in pair)
    if workflow := settings.pop("workflow", ""):
        config["workflow.type"] = workflow
    for key, value in settings.items():
        if ":" not in key:  # a default array is not that of any job
            config[_job_key(key)] = int(value) if value.isdigit() else value
    parts = Component(config=config)
    for argument, value in values.items():
        rule = ARGUMENTS.get(f"{workflow}.{argument}", ARGUMENTS.get(argument))
        if not target or rule == "" or value in _NOTHING:
            continue
        if rule is not None and rule.startswith("-") and "tracking.type" in config:
            arguments.notice(f"{argument} of {name} was left out: {rule[2:]}")
            continue
        if rule is None or rule.startswith("-"):
            reason = "there is no such argument" if rule is None else rule.removeprefix("- ")
            raise UsageError(f"{name}: {argument} is {value!r}: {reason}")
        key, _, converter = rule.partition(":")
        if converter in _OBJECTS:
            parts[_OBJECTS[converter]] = value
            continue
        convert: Callable[[Any], Any] = VALUES.get(
            converter, partial(arguments.converted, argument)
        )
        if (taken := convert(value)) is not None:
            config[_job_key(key)] = taken
    return parts


def _job_key(key: str) -> str:
    first, _, rest = key.partition(".")
    return f"{_SECTIONS[first]}.{rest}" if first in _SECTIONS else key


COMPONENTS: Mapping[str, Callable[..., Component]] = {
    name: partial(component, name)
    for name, target in CLASSES.items()
    if not target.startswith("-") and "filter=" not in target and "Launcher" not in name
}
"""Functions in the place of NVFlare's classes, by their names."""
