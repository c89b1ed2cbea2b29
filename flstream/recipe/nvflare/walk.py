"""Walk over each key of a configuration, which converts it and yields a note on it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from flstream.errors import UsageError
from flstream.recipe.nvflare.components import COMPONENTS, FILTERS, filter_of, is_for_trainings
from flstream.recipe.nvflare.controllers import CONTROLLERS
from flstream.recipe.nvflare.draft import (
    Argument,
    ConfiguredClass,
    JobDraft,
    Place,
    StageDraft,
)
from flstream.recipe.nvflare.executors import EXECUTORS
from flstream.recipe.nvflare.folders import AppFolder
from flstream.recipe.nvflare.notes import Note
from flstream.recipe.nvflare.reading import ConfigFile
from flstream.recipe.nvflare.rules import KnownClass, Rule, to
from flstream.recipe.nvflare.variables import fill_in
from flstream.recipe.nvflare_names import STREAMING_KEYS, UNNEEDED_KEYS

_UNKNOWN = "it is not known here"
_CLASS_KEYS = ("id", "path", "class_path", "name", "args", "config_type", "disabled")
_LISTS = (
    "workflows",
    "executors",
    "components",
    "handlers",
    "task_result_filters",
    "task_data_filters",
)


class Found(NamedTuple):
    """A section of a list, with its place."""

    place: Place
    values: dict[str, Any]


class ConfigWalk:
    """Walk over one configuration.

    Args:
        draft: The job that it becomes a part of.
        app: The app that the configuration is of.
        config: The configuration.

    Raises:
        UsageError: Something in it is of another type than NVFlare takes.
    """

    def __init__(self, draft: JobDraft, app: AppFolder, config: ConfigFile) -> None:
        self._draft, self._app = draft, app
        self._side = "server" if config is app.server else "client"
        self._config, self._uses = fill_in(config)
        top = Place(config.name, "")
        self._lists = {
            key: _sections(top.inner(key), self._config.values[key])
            for key in _LISTS
            if key in self._config.values
        }
        self._top = top

    def notes(self) -> Iterator[Note]:
        """Convert everything; yield a note on each setting."""
        for key, found in self._lists.items():
            if not found:
                yield self._top.inner(key).note("not needed", "it is empty")
        # What a workflow says comes first: other components may say the same in other words.
        components = [self._made(each) for each in self._all("components", "handlers")]
        self._draft.components = [made for made in components if made is not None]
        yield from self._workflows()
        yield from self._executors()
        yield from self._components()
        yield from self._filters()
        for key, value in self._config.values.items():
            if key not in _LISTS:
                yield self._key(Argument(None, self._top.inner(key), key, value))

    def _all(self, *keys: str) -> Iterator[Found]:
        for key in keys:
            yield from self._lists.get(key, [])

    def _key(self, argument: Argument) -> Note:
        """Convert a key at the top of the file."""
        key, value = argument.name, argument.value
        if key == "format_version" and value == 2:
            return argument.not_needed("a job file has none")
        if key in STREAMING_KEYS:
            return to(STREAMING_KEYS[key])(self._draft, argument)
        if key in UNNEEDED_KEYS:
            return argument.not_needed(UNNEEDED_KEYS[key])
        if key in ("server", "client") and isinstance(value, dict):
            return argument.not_needed("a site that ends is seen at once")
        if key in self._uses:
            return argument.becomes(f"a part of {', '.join(self._uses[key])}")
        return argument.lost(_UNKNOWN)

    def _workflows(self) -> Iterator[Note]:
        for found in self._all("workflows"):
            yield from self._one(found, self._known(found, CONTROLLERS))

    def _executors(self) -> Iterator[Note]:
        for place, values in self._all("executors"):
            executor = Found(place.inner("executor"), _section(place, values, "executor"))
            yield from self._one(executor, self._known(executor, EXECUTORS))
            why = "a site does what it is asked to"
            yield from _further_keys(Found(place, values), {"executor"}, {"tasks": why})

    def _components(self) -> Iterator[Note]:
        known: list[tuple[Found, KnownClass | None]] = []
        unknown: list[tuple[Found, KnownClass | None]] = []
        for found in self._all("components", "handlers"):
            rules = self._known(found, COMPONENTS)
            (unknown if rules is None else known).append((found, rules))
        # A model is a component of the user's own, which a persistor names.
        for found, rules in [*known, *unknown]:
            if found.values.get("id") in self._draft.models and rules is None:
                named = _class_of(found)
                yield found.place.note("becomes", "model.factory, model.args", named)
                yield from _further_keys(found)
            else:
                yield from self._one(found, rules)

    def _filters(self) -> Iterator[Note]:
        for place, values in self._all("task_result_filters", "task_data_filters"):
            is_data = place.path.startswith("task_data")
            filters = _sections(place.inner("filters"), values.get("filters"))
            if not filters:
                yield place.inner("filters").note("not needed", "it is empty")
            for found in filters:
                made, known = self._made(found), self._known(found, FILTERS)
                if made is not None and known is not None and known.kind == "becomes":
                    refused: str | None = "filters are applied to trainings"
                    if is_for_trainings(values.get("tasks")):
                        way, side = "down" if is_data else "up", self._side
                        refused = self._draft.add_filter(way, side, place.file, filter_of(made))
                        known = replace(known, word=f"a part of filters.{way}")
                    if refused:
                        known = KnownClass("no counterpart", refused)
                yield from self._one(found, known)
            why = dict.fromkeys(("tasks", "direction"), "it says where the filters are applied")
            yield from _further_keys(Found(place, values), {"filters"}, why)

    def _one(self, found: Found, known: KnownClass | None) -> Iterator[Note]:
        """Convert one object; yield the notes on it and on its arguments."""
        made = self._made(found)
        if made is None:
            yield found.place.note("not needed", "it is disabled", value=found.values)
            return
        known = known or KnownClass("no counterpart", _UNKNOWN)
        if known.workflow:
            self._draft.stages.append(StageDraft(known.workflow))
        refused = None
        for key, value in known.values.items():
            refused = self._draft.put(key, value)
        if refused is not None:
            known = KnownClass("no counterpart", refused)
        value = made.args or None if known.kind in ("comes later", "no counterpart") else None
        yield made.place.note(known.kind, known.word, made.named, value)
        if known.kind == "becomes":
            yield from self._arguments(made, known.args)
            yield from known.complete(self._draft, made)
        yield from _further_keys(found)

    def _arguments(self, made: ConfiguredClass, rules: Mapping[str, Rule]) -> Iterator[Note]:
        """Convert the arguments of an object: those that are known, then the others."""
        names = [*(name for name in rules if name in made.args),
                 *(name for name in made.args if name not in rules)]  # fmt: skip
        for name in names:
            place = made.place.inner(f"args.{name}")
            argument = Argument(made, place, name, made.args[name])
            rule = rules.get(name)
            yield argument.lost(_UNKNOWN) if rule is None else rule(self._draft, argument)

    def _known(self, found: Found, table: Mapping[str, KnownClass]) -> KnownClass | None:
        made = self._made(found)
        return None if made is None else table.get(made.short_name or "")

    def _made(self, found: Found) -> ConfiguredClass | None:
        """Return the object that a section has NVFlare make; None for one that is disabled."""
        values = found.values
        if values.get("disabled") is True:
            return None
        args = values.get("args")
        if args is None:
            args = {}
        if not isinstance(args, dict):
            file, path = found.place
            raise UsageError(f"{file}: {path}.args must be a section of names and values")
        named, own_id = _class_of(found), values.get("id")
        return ConfiguredClass(self._app, found.place, named, str(own_id or ""), args)


def _class_of(found: Found) -> str:
    for key in ("path", "class_path", "name"):
        named = found.values.get(key)
        if isinstance(named, str) and named:
            return named
    file, path = found.place
    raise UsageError(f"{file}: {path} names no class: it has neither a path nor a name")


def _further_keys(
    found: Found,
    known: Collection[str] = _CLASS_KEYS,
    unneeded: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Note]:
    """Yield notes on the keys of a section that are not known, and why some need not be."""
    for key in found.values.keys() - set(known):
        argument = Argument(None, found.place.inner(key), key, found.values[key])
        why = unneeded.get(key)
        yield argument.lost(_UNKNOWN) if why is None else argument.not_needed(why)


def _section(place: Place, values: Mapping[str, Any], key: str) -> dict[str, Any]:
    section = values.get(key)
    if not isinstance(section, dict):
        raise UsageError(f"{place.file}: {place.path}.{key} must be a section")
    return section


def _sections(place: Place, value: Any) -> list[Found]:
    """Return the sections of a list, each with its place."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UsageError(f"{place.file}: {place.path} must be a list of sections")
    return [Found(Place(place.file, f"{place.path}[{at}]"), each) for at, each in enumerate(value)]
