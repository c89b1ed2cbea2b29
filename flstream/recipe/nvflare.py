"""NVFlare's job folders as jobs, without running their code, and its components as objects."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from filecmp import cmp
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flstream.errors import UsageError
from flstream.job import JobError, Problem, load_job
from flstream.job.hocon import read_hocon
from flstream.recipe import arguments
from flstream.recipe import nvflare_table as table
from flstream.recipe.initial_model import NUMPY_KEY, class_section
from flstream.recipe.job_folder import JOB_FILE, whole_folder, write_job_folder
from flstream.text import natural_key, printable, shortened

CLIENT = "config_fed_client"
_CONFIGURATIONS = ("meta", "config_fed_server", CLIENT)
_SUFFIXES = (".json", ".conf")  # of two files NVFlare reads the first
_LISTS = ("workflows", "executors", "components", "handlers")
_FILTERS = {"task_result_filters": "up", "task_data_filters": "down"}
_COUNTS = re.compile(r'"(?:min_clients|num_clients|min_responses_required)": (\d{1,6})\b')
_KEYS = (
    *("name", "rounds", "stop_when", "patience", "clients", "model", "train", "workflow"),
    *("aggregation", "server_optimizer", "filters", "streaming", "tracking"),
)
_ARRAY_FILE, _MOST_BYTES = "initial.npz", 1 << 18  # pyhocon takes seconds for so many
_INCLUDE = re.compile(r"\binclude\s*(\"|required\b|file\b|url\b|package\b)", re.IGNORECASE)
_VARIABLE = re.compile(r'(")?\{(\w+)\}(?(1)"(?!\s*:))')
_CUSTOM = re.compile(r"^(\{JOB_CUSTOM_DIR\}/|(\./)?custom/|\./)")
_UNKNOWN = "- it is not known here"
_NOTHING: Sequence[Any] = (None, "", [], {})
_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "arrays": lambda value: None if value == "raw" else value,
    "listed": lambda value: value if isinstance(value, list) else None,
    "min": lambda value: "min" if value else None,
    "positive": lambda value: value or None,
    "torch": lambda value: value if value == "pytorch" else None,
}
"""Converters of values that need nothing else of the job; None for a value that asks nothing."""
CLASSES = tuple(name for name, target in table.CLASSES.items() if target[:1] != "-")
"""Names of NVFlare's classes that are taken or not needed, in the order of conversion."""
# Of objects of NVFlare: arguments of a recipe by their converters, and sections by those of rules.
_OBJECTS = {"model": "model", "checkpoint": "initial_ckpt"}
_SECTIONS = {"metric": "workflow.args", "stage": "workflow.args"}


def convert(source: Path, name: str | None = None) -> Conversion:
    """Convert a job folder, or a configuration alone. Its code is not imported.

    Args:
        source: Path of the folder, or of a file such as ``config_fed_server.conf``.
        name: Name of the job; None to make one from that which it has in NVFlare.

    Raises:
        UsageError: It cannot be read, or is no job folder of NVFlare.
    """
    try:
        source = source.resolve(strict=True)
        root = source if source.is_dir() else source.parent
        paths = _configurations(root) if root == source else [source]
        if root != source and source.suffix not in _SUFFIXES:
            raise UsageError(f"{source} is no configuration; its suffix is none of .json, .conf")
        if all(path.stem == "meta" for path in paths):
            raise UsageError(
                f"{root} is no job folder of NVFlare: it has no {' nor '.join(_CONFIGURATIONS[1:])}"
                " (.json, .conf), in itself or in the folder of an app"
            )
        files = {path: _read(path, path.relative_to(root).as_posix()) for path in paths}
        meta = next((files[path] for path in paths if path.stem == "meta"), {})
        folder = root.parent if root.name == "config" else root
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(meta.get("name") or folder.name))
        name = name or plain.strip("._-")[:100] or "job"
        return Conversion(root, name, json.dumps(meta.get("deploy_map")), files)
    except OSError as error:
        raise UsageError(f"{error.filename or source} cannot be read: {error.strerror}") from error


def write_job(conversion: Conversion, folder: Path) -> list[str]:
    """Write a converted job into a new or empty folder; return its files, sorted.

    Raises:
        UsageError: The folder is not empty, or cannot be written; nothing is left in it then.
    """
    lines = [f"# From the NVFlare job folder {printable(conversion.root.name)}."]
    lines += ["#", "# Not taken:"] if conversion.notes else []
    for file, notes in conversion.notes.items():
        lines += [f"#   {file}", *(f"#     {note}" for note in notes)]
    with whole_folder(folder) as scratch:
        files = {Path(target): path for target, path in conversion.files.items()}
        write_job_folder(scratch, "\n".join(lines), conversion.values, files)
        if conversion.array is not None:
            import numpy as np

            np.savez(scratch / _ARRAY_FILE, **{NUMPY_KEY: conversion.array})
        return sorted(str(p.relative_to(scratch)) for p in scratch.rglob("*") if p.is_file())


def open_problems(folder: Path) -> tuple[Problem, ...]:
    """Return the mistakes of a written job that its user has to mend first."""
    try:
        load_job(folder / JOB_FILE)
    except JobError as error:
        return error.problems
    return ()


def _configurations(root: Path) -> list[Path]:
    """Return the meta file, and the configurations of all apps."""
    files = [path for suffix in _SUFFIXES for path in root.rglob(f"*{suffix}")]
    known = [path for path in reversed(files) if path.stem in _CONFIGURATIONS]
    first = {path.with_suffix(""): path for path in known if "custom" not in path.parts}
    return sorted(first.values(), key=lambda p: (p.stem != "meta", p.stem == CLIENT, p))


def _read(path: Path, name: str) -> dict[str, Any]:
    """Read a configuration, with its variables filled in."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES >> 10} KiB")
        text = content.decode("utf-8-sig")
        values = json.loads(text) if path.suffix == ".json" else _hocon(path, text)
        plain = json.dumps(values, ensure_ascii=False)
        if not isinstance(values, dict):
            raise ValueError("it has no names")
        if b"\\u0000" in plain.encode():
            raise ValueError("it has a text with a NUL")
        return dict(json.loads(_filled(plain, values)))
    except UnicodeError:
        raise UsageError(f"{name} has a text with a character that no file may have") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply to be read") from None
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} cannot be read as a mapping of names: {reason}") from None


def _hocon(path: Path, text: str) -> dict[str, Any]:
    if _INCLUDE.search(text):  # for which packages would be imported, and files read
        raise ValueError("it includes another file; write the lines of that file into it")
    hocon = read_hocon(path)
    if hocon.problems:
        raise ValueError("; ".join(map(str, hocon.problems)))
    return hocon.values


def _filled(text: str, values: Mapping[str, Any]) -> str:
    """Replace ``{name}`` in JSON by the value of a key at the top; others stay."""

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[2])
        # Long ones could fill the memory.
        if match[2] not in values or isinstance(value, dict | list) or len(str(value)) >= 1000:
            return match[0]
        return json.dumps(value) if match[1] else json.dumps(str(value))[1:-1]

    return _VARIABLE.sub(fill, text)


class _Object(NamedTuple):
    """Object that NVFlare makes; the name of its class is empty if not NVFlare's."""

    place: str
    named: str
    name: str
    section: Mapping[str, Any]
    args: Mapping[str, Any]
    tasks: Any


class Conversion:
    """Job that a job folder converts to.

    Attributes:
        root: Path of the job folder.
        name: Name of the job.
        values: Values of the job file by key; sections are dicts.
        files: Files to copy, by their path in the new folder.
        array: Initial array to write; None for none.
        notes: Lines on settings that were not taken, by file: place, value and reason.
    """

    def __init__(
        self, root: Path, name: str, deploy_map: str, configurations: Mapping[Path, dict[str, Any]]
    ) -> None:
        self.root, self.name = root, name
        self.array: Any = None
        self.values: dict[str, Any] = {"name": name}
        self.files: dict[str, Path] = {}
        self.notes: dict[str, list[str]] = {}
        self._keys: dict[str, Any] = {}  # values by dotted keys
        self._stages: list[dict[str, Any]] = []
        self._metric: dict[str, Any] = {}
        self._filters: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._models: set[str] = set()  # ids of components
        self._given: set[str] = set()  # dotted, of all that has a value
        # The sites are those of the deploy map, or as many as the files ask for.
        listed = re.findall(r'"([^"]+)"(?!")(?=[,\]])', deploy_map)
        sites = [name for name in dict.fromkeys(listed) if name not in arguments.PLACES]
        counts = _COUNTS.findall(json.dumps([*configurations.values()]))
        count = len(sites) or max(map(int, counts), default=0)
        is_numbered = sites == [f"site-{n + 1}" for n in range(len(sites))]
        if arguments.ALL_SITES not in listed and not is_numbered:
            self._keys["clients.names"] = sites
        elif count:
            self._keys["clients.count"] = count
        for path, values in configurations.items():
            self._configuration(path, values)
        for path in sorted(root.rglob("custom/**/*")):
            self._copy(path)
        self._finish(count)

    def _configuration(self, path: Path, values: dict[str, Any]) -> None:
        """Convert a configuration: its classes in the order of the table, then all else."""
        self._file, side = path.relative_to(self.root).as_posix(), path.stem
        self._app = path.parent.parent if path.parent.name == "config" else path.parent
        for key in (*_LISTS, *_FILTERS):
            if not isinstance(values.setdefault(key, []) or [], list):
                raise UsageError(f"{self._file}: {key} must be a list of sections")
        parts = [part for key in _LISTS for part in self._objects(key, values.pop(key) or [])]
        self._components = {str(part.section.get("id")): part.section for part in parts}
        for part in sorted(parts, key=lambda part: [*CLASSES, part.name].index(part.name)):
            self._class(part)
        for key, direction in _FILTERS.items():
            self._chain: list[dict[str, Any]] = []
            for part in self._objects(key, values.pop(key) or []):
                self._class(part)
            chain = self._chain
            if chain and self._filters.setdefault((direction, side), chain) != chain:
                self._note(key, chain, "all sites have the same filters here")
        text = path.read_text(errors="replace")
        for key, value in values.items():
            reason = table.ARGUMENTS.get(key, _UNKNOWN)
            if key in arguments.STREAMING_KEYS:
                self._keys.setdefault(f"streaming.{key}", value)
            elif reason.startswith("-") and f"{{{key}}}" not in text and value not in _NOTHING:
                self._note(key, value, reason)

    def _finish(self, count: int) -> None:
        """Complete the keys of the job."""
        for key in ("clients.min_updates", "clients.per_round"):
            if self._keys.get(key) == count:
                del self._keys[key]
        for (direction, _), filters in sorted(self._filters.items(), reverse=True):
            self._keys.setdefault(f"filters.{direction}", []).extend(filters)
        stop = str(self._keys.get("stop_when", ""))
        if "key_metric" not in self._metric and (condition := re.match(r"\s*([^\s<>=]+)", stop)):
            self._metric["key_metric"] = condition[1]
        if arguments.metric_mode(str(self._metric.get("key_metric", "")), stop) == "min":
            self._metric.setdefault("key_metric_mode", "min")
        stages = [{**stage, "args": {**stage["args"], **self._metric}} for stage in self._stages]
        stages = [{key: stage[key] for key in stage if stage[key]} for stage in stages]
        if len(stages) > 1:
            self._keys["workflow"] = stages
        elif stages or self._metric:
            self._keys["workflow"] = [*stages, {"args": self._metric}][0]
        self._keys["train.alias"] = "nvflare"
        for key in sorted(self._keys, key=lambda key: _KEYS.index(key.partition(".")[0])):
            arguments.put(self.values, key, self._keys[key])
        for notes in self.notes.values():
            notes.sort(key=natural_key)

    def _objects(self, place: str, value: Any, tasks: Any = None) -> Iterator[_Object]:
        """Yield the objects of a list, also of an executor's or a filter's inner section."""
        if isinstance(value, list):
            for at, inner in enumerate(value):
                yield from self._objects(f"{place}[{at}]", inner, tasks)
            return
        section = value if isinstance(value, dict) else {}
        for key, nothing in (("executor", None), ("filters", [])):
            if key in section:
                inner = section[key] or nothing
                yield from self._objects(f"{place}.{key}", inner, section.get("tasks"))
                return
        names = [section.get(key) for key in ("path", "class_path", "name")]
        named = next((name for name in names if isinstance(name, str) and name), "")
        args = section.get("args") or {}
        if not named or not isinstance(args, dict):
            what = "a section with a path or name, and its args a section"
            raise UsageError(f"{self._file}: {place} must be {what}")
        is_theirs = named.startswith("nvflare.") or "." not in named
        name = named.rpartition(".")[2] if is_theirs else ""
        yield _Object(place, named, name, section, args, tasks)

    def _note(self, place: str, value: object, reason: str) -> None:
        shown = "" if value in ("", {}) else f" = {json.dumps(value, ensure_ascii=False)}"
        parts = (f"{place}{shortened(shown, 200)}", reason.removeprefix("- "))
        text = printable(": ".join(filter(None, parts)))
        self.notes.setdefault(printable(self._file), []).append(text)

    def _class(self, part: _Object) -> None:
        """Convert an object that NVFlare makes, and its arguments."""
        target, named = table.CLASSES.get(part.name, _UNKNOWN), f"{part.place} {part.named}"
        is_apart = part.section.get("disabled") is True
        if not target or is_apart or str(part.section.get("id")) in self._models:
            return
        if target.startswith("-"):
            self._note(named, part.args, target)
            return
        settings = _settings(target)
        if kind := settings.get("filter"):
            args = {key: part.args[key] for key in part.args if table.ARGUMENTS.get(key) != ""}
            if part.tasks and {"train", "*"}.isdisjoint(part.tasks):
                self._note(named, part.args, "filters are applied to trainings")
            else:
                self._chain.append({"type": kind, **({"args": args} if args else {})})
            return
        if workflow := settings.pop("workflow", ""):
            self._stages.append({"type": workflow, "args": {}})
        for key in sorted(part.args, key=lambda name: [*table.ARGUMENTS, name].index(name)):
            rule = table.ARGUMENTS.get(f"{workflow}.{key}", table.ARGUMENTS.get(key, _UNKNOWN))
            self._argument(f"{part.place}.args.{key}", key, rule, part.args[key])
        for rule, text in settings.items():
            key = rule.partition(":")[0]
            is_given = any(name == key or name.startswith(f"{key}.") for name in self._given)
            if key == "tracking.type" or not is_given:
                self._argument(named, key, rule, text if text.isidentifier() else json.loads(text))

    def _argument(self, place: str, name: str, rule: str, value: Any) -> None:
        """Convert an argument by its rule: a key and the name of a converter, or a reason."""
        is_off = value is False and rule.startswith("-") and rule != _UNKNOWN
        if not rule or value in _NOTHING or is_off:
            return
        try:
            if rule.startswith("-"):
                raise ValueError(rule)
            key, _, converter = rule.partition(":")
            convert = _VALUES.get(converter) or getattr(self, f"_{converter}", None)
            taken = convert(value) if convert else arguments.converted(converter or name, value)
            if taken is not None:
                self._put(key, taken)
        except (ValueError, TypeError, AttributeError) as error:
            self._note(place, value, str(error))

    def _put(self, key: str, value: Any) -> None:
        """Set a key that has no value yet; ``stage.`` keys are the last workflow's."""
        first, _, rest = key.partition(".")
        if not rest and isinstance(value, dict):
            for name in [name for name in value if value[name] is not None]:
                self._put(f"{key}.{name}", value[name])
            return
        stage = self._stages[-1]["args"] if self._stages else None
        section = {"metric": self._metric, "stage": stage}.get(first, self._keys)
        if section is None:
            raise ValueError(_UNKNOWN)
        name = key if section is self._keys else rest
        self._given.add(key)
        if section.setdefault(name, value) != value:
            raise ValueError(f"{key} is {json.dumps(section[name], ensure_ascii=False)} already")

    def _copy(self, path: Path) -> None:
        """Enter a file of the code; its place stays, so that packages stay packages."""
        parts = path.relative_to(self.root).parts
        target = "/".join(parts[parts.index("custom") + 1 :])
        self._file, first = "/".join(parts), self.files.get(target, path)
        if "__pycache__" in parts or (path.is_dir() and not path.is_symlink()):
            return
        if not path.is_file() or not path.resolve().is_relative_to(self.root):
            self._note("", "", "it is no file of this folder; not copied")
        elif target in (JOB_FILE, _ARRAY_FILE) or not cmp(first, path, shallow=False):
            self._note("", "", f"not copied: the job has another {target}")
        else:
            self.files[target] = first

    def _timeout(self, value: Any) -> Any:
        if not value:
            raise ValueError("no limit, while clients.round_timeout is an hour unless it is set")
        return value

    def _model(self, value: Any) -> dict[str, Any]:
        """Convert a class with arguments, a class path, a component's id, or an array."""
        if isinstance(value, list):
            import numpy as np

            self.array = np.asarray(value, dtype=np.float32)
            return {"initial": _ARRAY_FILE}
        if isinstance(value, str):
            section = self._components.get(value, {"path": value})
            self._models |= {value} & self._components.keys()
            value = {key: section[key] for key in ("path", "args") if key in section}
        return class_section(value)

    def _checkpoint(self, value: Any) -> str:
        """Convert the path of a file with weights; one in the job folder is copied."""
        for folder in (self.root, self._app, self._app / "custom"):
            path = (folder / str(value)).resolve()
            if path.is_file() and path.suffix == ".npy":
                import numpy as np

                # Unlike numpy.load, it takes nothing but arrays of plain numbers.
                self.array = np.lib.format.open_memmap(path, mode="r")
                return _ARRAY_FILE
            if path.is_file() and path.is_relative_to(self.root):
                self.files[path.name] = path
                return path.name
        return str(value)

    def _script(self, value: Any) -> str:
        """Convert the path of a script in the folder custom."""
        custom, named = self._app / "custom", _CUSTOM.sub("", str(value))
        if not (custom / named).resolve().is_relative_to(custom.resolve()):
            raise UsageError(f"{self._file}: the script {value} lies outside of the folder custom")
        if not (custom / named).is_file() and "/" not in named:
            named = next((p.relative_to(custom).as_posix() for p in custom.rglob(named)), named)
        return named

    def _words(self, words: str) -> str:
        if names := re.findall(r"\{\w+\}", words):
            self._note("", words, f"{', '.join(names)} is not filled in")
        return words

    def _command(self, value: Any) -> dict[str, Any]:
        """Convert the command line that starts a script."""
        words = shlex.split(value) if isinstance(value, str) else value
        at = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
        if at is None:
            raise ValueError("it starts no Python file, as train.script is")
        args = self._words(shlex.join(words[at + 1 :])) or None
        launcher = arguments.converted("command", shlex.join(words[:at]))
        return {"script": self._script(words[at]), "args": args, "command": launcher}


class Component(dict[str, Any]):
    """Arguments of a recipe that an object of NVFlare sets; ``config`` has most of them."""


def component(name: str, *unnamed: Any, **values: Any) -> Component:
    """Return what an object of a class of NVFlare sets in a job.

    Raises:
        UsageError: An argument has no counterpart, or no name.
    """
    if unnamed:
        raise UsageError(f"{name} was given {unnamed[0]!r} without a name; name all arguments")
    target, config = table.CLASSES[name], dict[str, Any]()
    settings = _settings(target)
    if workflow := settings.pop("workflow", ""):
        config["workflow.type"] = workflow
    for key, value in settings.items():
        if ":" not in key:  # a default array is not that of any job
            config[_job_key(key)] = int(value) if value.isdigit() else value
    parts = Component(config=config)
    for argument, value in values.items():
        rule = table.ARGUMENTS.get(f"{workflow}.{argument}", table.ARGUMENTS.get(argument))
        if not target or rule == "" or value in (None, "", False):
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
        convert = _VALUES.get(converter) or partial(arguments.converted, argument)
        if (taken := convert(value)) is not None:
            config[_job_key(key)] = taken
    return parts


def _settings(target: str) -> dict[str, str]:
    """Return the values that a class of the table sets, by their rules."""
    return dict(pair.split("=", 1) for pair in target.split() if "=" in pair)


def _job_key(key: str) -> str:
    first, _, rest = key.partition(".")
    return f"{_SECTIONS[first]}.{rest}" if first in _SECTIONS else key


COMPONENTS: Mapping[str, Callable[..., Component]] = {
    name: partial(component, name)
    for name, target in table.CLASSES.items()
    if not target.startswith("-") and "filter=" not in target and "Launcher" not in name
}
"""Functions in the place of NVFlare's classes, by their names."""
