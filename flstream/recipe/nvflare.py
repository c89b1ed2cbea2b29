"""Conversion of NVFlare's job folders into jobs; nothing of a folder is imported or run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from filecmp import cmp
from pathlib import Path
from typing import Any, TypeVar

from flstream.errors import UsageError
from flstream.job import JobError, Problem, load_job, render_values
from flstream.recipe import arguments, nvflare_table
from flstream.recipe.initial_model import NUMPY_KEY, class_section
from flstream.recipe.job_folder import JOB_FILE, whole_folder
from flstream.text import natural_key, printable, shortened

_SUFFIXES = (".json", ".conf")  # of two files NVFlare reads the first
_SIDES = ("config_fed_server", "config_fed_client")
_LISTS = ("workflows", "executors", "components", "handlers")
_FILTERS = {"task_result_filters": "up", "task_data_filters": "down"}
_COUNTS = re.compile(r'"(?:min_clients|num_clients|min_responses_required)": (\d{1,6})\b')
_ORDER = (
    *("name", "rounds", "stop_when", "patience", "clients", "model", "train", "workflow"),
    *("aggregation", "server_optimizer", "filters", "streaming", "tracking"),
)
_ARRAY_FILE, _MOST_BYTES = "initial.npz", 1 << 18  # pyhocon takes seconds for so many
_INCLUDE = re.compile(r"\binclude\s*(\"|required\b|file\b|url\b|package\b)", re.IGNORECASE)
_CUSTOM = re.compile(r"^(\{JOB_CUSTOM_DIR\}/|(\./)?custom/|\./)")
_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "": lambda value: value,
    "arrays": lambda value: None if value == "raw" else value,
    "listed": lambda value: value if isinstance(value, list) else None,
    "lower": lambda value: value.lower() if isinstance(value, str) else value,
    "min": lambda value: "min" if value else None,
    "positive": lambda value: value or None,
    "torch": lambda value: value if value == "pytorch" else None,
}
_INSTEAD = {"model:model": ("model.factory", "model.initial")}
Arguments = Mapping[str, Any]
_UNKNOWN = "it is not known here"
ValueT = TypeVar("ValueT")


def _by_name(table: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Return a table with an entry for each of the names that share one."""
    return {name: value for names, value in table.items() for name in names.split()}


_WORKFLOWS, _DEFAULTS = _by_name(nvflare_table.WORKFLOWS), _by_name(nvflare_table.DEFAULTS)
_ARGUMENTS, _LOST = _by_name(nvflare_table.ARGUMENTS), _by_name(nvflare_table.LOST_ARGUMENTS)
_OF_A_WORKFLOW = {k: _by_name(v) for k, v in _by_name(nvflare_table.WORKFLOW_ARGUMENTS).items()}
_NO_COUNTERPART = _by_name(nvflare_table.NO_COUNTERPART)
_NOT_NEEDED = _by_name(nvflare_table.NOT_NEEDED)
CLASSES = (*_WORKFLOWS, *_by_name(nvflare_table.SECTIONS), *nvflare_table.FILTERS, *_NOT_NEEDED)
"""Names of NVFlare's classes that are taken or not needed, in the order of conversion."""


@dataclass
class Conversion:
    """Job that a job folder becomes.

    Attributes:
        root: Path of the job folder.
        name: Name of the job.
        values: Values of the job file by key; sections are dicts.
        files: Files to copy, by their path in the new folder.
        array: Initial array to write; None for none.
        notes: Lines on settings that were not taken, by file: place, value and reason.
    """

    root: Path
    name: str
    values: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    array: Any = None
    notes: dict[str, list[str]] = field(default_factory=dict)


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
                f"{root} is no job folder of NVFlare: it has no {' nor '.join(_SIDES)} "
                "(.json, .conf), in itself or in the folder of an app"
            )
        files = {path: _read(path, path.relative_to(root).as_posix()) for path in paths}
        meta = next((files[path] for path in paths if path.stem == "meta"), {})
        folder = root.parent if root.name == "config" else root
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(meta.get("name") or folder.name))
        draft = _Draft(Conversion(root, name or plain.strip("._-")[:100] or "job"))
        draft.put_sites(json.dumps(meta.get("deploy_map")), json.dumps([*files.values()]))
        for path, values in files.items():
            draft.convert(path, values)
        return draft.finished()
    except OSError as error:
        raise UsageError(f"{error.filename or source} cannot be read: {error.strerror}") from error


def write_job(conversion: Conversion, folder: Path) -> list[str]:
    """Write a converted job into a new or empty folder, and return its files' paths, sorted.

    Raises:
        UsageError: The folder is not empty, or cannot be written; nothing is left in it then.
    """
    lines = [f"# From the NVFlare job folder {printable(conversion.root.name)}."]
    lines += ["#", "# Not taken:"] if conversion.notes else []
    for file, notes in conversion.notes.items():
        lines += [f"#   {file}", *(f"#     {note}" for note in notes)]
    with whole_folder(folder) as scratch:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; name a new folder")
        for target, path in conversion.files.items():
            (scratch / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, scratch / target)
        if conversion.array is not None:
            import numpy as np

            np.savez(scratch / _ARRAY_FILE, **{NUMPY_KEY: conversion.array})
        text = "\n".join([*lines, render_values(conversion.values)])
        (scratch / JOB_FILE).write_text(text, encoding="utf-8")
        return sorted(str(p.relative_to(scratch)) for p in scratch.rglob("*") if p.is_file())


def open_problems(folder: Path) -> tuple[Problem, ...]:
    """Return what a written job lacks or has wrong, before it can run."""
    try:
        load_job(folder / JOB_FILE)
    except JobError as error:
        return error.problems
    return ()


def _configurations(root: Path) -> list[Path]:
    """Return the meta file, and the configurations of all apps."""
    files = [path for suffix in _SUFFIXES for path in root.rglob(f"*{suffix}")]
    known = [path for path in reversed(files) if path.stem in ("meta", *_SIDES)]
    first = {path.with_suffix(""): path for path in known if "custom" not in path.parts}
    return sorted(first.values(), key=lambda p: (p.stem != "meta", p.stem == _SIDES[1], p))


def _read(path: Path, name: str) -> dict[str, Any]:
    """Read a configuration, with its variables filled in."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES >> 10} KiB")
        text = content.decode("utf-8-sig")
        values = json.loads(text) if path.suffix == ".json" else _hocon(text)
        plain = json.dumps(values, ensure_ascii=False, default=str).encode()
        values = json.loads(plain)
        if not isinstance(values, dict):
            raise ValueError("it has no names")
        if b"\\u0000" in plain:
            raise ValueError("it has a text with a NUL")
        # Longer ones could fill the memory.
        plain_values = {key: value for key, value in values.items() if len(str(value)) < 1000}
        variables = {k: v for k, v in plain_values.items() if not isinstance(v, dict | list)}
        return {key: _filled(value, variables) for key, value in values.items()}
    except UnicodeError:
        raise UsageError(f"{name} has a text with a character that no file may have") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply to be read") from None
    except (ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} cannot be read as a mapping of names: {reason}") from None


def _hocon(text: str) -> Any:
    from pyhocon import ConfigFactory
    from pyhocon.exceptions import ConfigException
    from pyparsing import ParseBaseException, ParserElement

    if _INCLUDE.search(text):  # for which packages would be imported, and files read
        raise ValueError("it includes another file; write the lines of that file into it")
    whitespace = ParserElement.DEFAULT_WHITE_CHARS
    try:
        return ConfigFactory.parse_string(text).as_plain_ordered_dict()
    except (ParseBaseException, ConfigException) as error:
        raise ValueError(f"syntax error: {error}") from None
    finally:
        ParserElement.set_default_whitespace_chars(whitespace)  # which pyhocon changes


def _filled(value: Any, variables: Mapping[str, Any]) -> Any:
    """Replace ``{name}`` by the value of a key at the top; others, as ``{SITE_NAME}``, stay."""
    match value:
        case dict():
            return {key: _filled(inner, variables) for key, inner in value.items()}
        case list():
            return [_filled(inner, variables) for inner in value]
        case str() if value.strip(" {}") in variables and value.strip()[:1] == "{":
            return variables[value.strip(" {}")]
        case str():
            return re.sub(r"\{(\w+)\}", lambda m: str(variables.get(m[1], m[0])), value)
        case _:
            return value


def _class_of(section: Mapping[str, Any]) -> tuple[str, str]:
    """Return a section's class as it is named, and its name if it is one of NVFlare's."""
    names = [section.get(key) for key in ("path", "class_path", "name")]
    named = next((name for name in names if isinstance(name, str) and name), "")
    is_theirs = named.startswith("nvflare.") or "." not in named
    return named, named.rpartition(".")[2] if is_theirs else ""


def _rank(place: tuple[str, Mapping[str, Any]]) -> int:
    """Return the place of a class in the order of conversion; others come last."""
    name = _class_of(place[1])[1]
    return [*CLASSES, name].index(name)


class _Draft:
    """A conversion under way: keys by their dotted names, and notes on what is not taken."""

    def __init__(self, job: Conversion) -> None:
        self.job = job
        self.values: dict[str, Any] = {}
        self.stages: list[dict[str, Any]] = []
        self.count = 0
        self.models: set[str] = set()

    def put_sites(self, deploy_map: str, files: str) -> None:
        """Give the job its sites: those of the deploy map, or as many as the files ask for."""
        listed = re.findall(r'"([^"]+)"(?!")(?=[,\]])', deploy_map)
        sites = [name for name in dict.fromkeys(listed) if name not in ("server", "@ALL")]
        self.count = len(sites) or max(map(int, _COUNTS.findall(files)), default=0)
        if "@ALL" not in listed and sites != [f"site-{n + 1}" for n in range(len(sites))]:
            self.values["clients.names"] = sites
        elif self.count:
            self.values["clients.count"] = self.count

    def convert(self, path: Path, values: dict[str, Any]) -> None:
        """Convert a configuration: its classes in the order of the table, then all else."""
        self.file, side = path.relative_to(self.job.root).as_posix(), path.stem
        self.app = path.parent.parent if path.parent.name == "config" else path.parent
        classes: list[tuple[str, dict[str, Any]]] = []
        for key in (*_LISTS, *_FILTERS):
            sections, filters = values.pop(key, None) or [], []
            if not isinstance(sections, list) or not all(isinstance(s, dict) for s in sections):
                raise UsageError(f"{self.file}: {key} must be a list of sections")
            for at, section in enumerate(sections):
                for n, inner in enumerate(section.get("filters") or () if key in _FILTERS else ()):
                    place = f"{key}[{at}].filters[{n}]"
                    self._expect_section(place, inner)
                    filters += self._filter(place, inner, section.get("tasks"))
                if key == "executors":
                    place = f"{key}[{at}].executor"
                    self._expect_section(place, executor := section.get("executor"))
                    classes.append((place, executor))
                elif key in _LISTS:
                    classes.append((f"{key}[{at}]", section))
            listed = f"filters.{_FILTERS.get(key)}.{side}"
            if filters and self.values.setdefault(listed, filters) != filters:
                self._note(key, filters, "all sites have the same filters here")
        self.components = {str(section.get("id")): section for _, section in classes}
        for place, section in sorted(classes, key=_rank):
            self._class(place, section)
        text = path.read_text(errors="replace")
        for key in values:
            if key in arguments.STREAMING_KEYS:
                self.values.setdefault(f"streaming.{key}", values[key])
            elif key not in arguments.UNNEEDED and f"{{{key}}}" not in text:
                self._argument(key, key, values, {})

    def _expect_section(self, place: str, value: object) -> None:
        if not isinstance(value, dict):
            raise UsageError(f"{self.file}: {place} must be a section with a path or name")

    def finished(self) -> Conversion:
        """Copy the code, and put the keys together."""
        for path in sorted(self.job.root.rglob("custom/**/*")):
            self._copy(path)
        for direction in _FILTERS.values():
            lists = [self.values.pop(f"filters.{direction}.{side}", []) for side in _SIDES]
            if any(lists):
                self.values[f"filters.{direction}"] = [*lists[0], *lists[1]]
        keys = [key for key in self.values if key.startswith("metric.")]
        args = {key.removeprefix("metric."): self.values.pop(key) for key in keys}
        stop = str(self.values.get("stop_when", ""))
        if "key_metric" not in args and (condition := re.match(r"\s*([^\s<>=]+)", stop)):
            args["key_metric"] = condition[1]
        if arguments.metric_mode(str(args.get("key_metric", "")), stop) == "min":
            args.setdefault("key_metric_mode", "min")
        stages = [{**stage, "args": {**stage["args"], **args}} for stage in self.stages]
        stages = [{key: stage[key] for key in stage if stage[key]} for stage in stages]
        if stages or args:
            self.values["workflow"] = stages if len(stages) > 1 else [*stages, {"args": args}][0]
        values = {"name": self.job.name, **self.values, "train.alias": "nvflare"}
        for key in sorted(values, key=lambda key: _ORDER.index(key.partition(".")[0])):
            arguments.put(self.job.values, key, values[key])
        for notes in self.job.notes.values():
            notes.sort(key=natural_key)
        return self.job

    def _note(self, path: str, value: object, reason: str) -> None:
        shown = "" if value in ("", {}) else f" = {json.dumps(value, ensure_ascii=False)}"
        text = ": ".join(filter(None, (f"{path}{shortened(shown, 200)}", reason)))
        self.job.notes.setdefault(printable(self.file), []).append(printable(text))

    def _class(self, path: str, section: dict[str, Any]) -> None:
        """Convert an object that NVFlare makes, and its arguments."""
        (named, name), args = _class_of(section), section.get("args") or {}
        if not named or not isinstance(args, dict):
            raise UsageError(f"{self.file}: {path} has no path or name, or its args are no section")
        is_apart = section.get("disabled") is True or str(section.get("id")) in self.models
        if is_apart or name in _NOT_NEEDED:
            return
        if name not in CLASSES:
            self._note(f"{path} {named}", args, _NO_COUNTERPART.get(name, _UNKNOWN))
            return
        workflow = _WORKFLOWS.get(name)
        self.stages += [] if workflow is None else [{"type": workflow, "args": {}}]
        rules = {**_ARGUMENTS, **_OF_A_WORKFLOW.get(workflow or "", {})}
        for key in sorted(args, key=lambda name: [*rules, name].index(name)):
            self._argument(f"{path}.args.{key}", key, args, rules)
        defaults = _DEFAULTS.get(name, {})
        for key in defaults:
            if key == "tracking.type" or not {key, *_INSTEAD.get(key, ())} & self.values.keys():
                self._argument(f"{path} {named}", key, defaults, {key: key})

    def _argument(self, path: str, name: str, args: Arguments, rules: Mapping[str, str]) -> None:
        """Convert an argument, or a key at the top; the other arguments may belong to it."""
        value = args[name]
        asks_nothing = value is None or value in ("", [], {}) or (value is False and name in _LOST)
        if asks_nothing or name in nvflare_table.NEEDLESS - rules.keys():
            return
        try:
            if name not in rules:
                raise ValueError(_LOST.get(name, _UNKNOWN))
            key, _, converter = rules[name].partition(":")
            if converter in _CONVERTERS:
                values = {"": _CONVERTERS[converter](value)}
            else:
                values = getattr(self, f"_{converter}")(value, args)
            for inner, converted in values.items():
                if converted is not None:
                    self._put(f"{key}{inner}", converted)
        except (ValueError, TypeError, AttributeError) as error:
            self._note(path, value, str(error))

    def _put(self, key: str, value: Any) -> None:
        """Give a key a value, unless it has another."""
        where, name = self.values, key
        if key.startswith("stage."):
            where, name = self.stages[-1]["args"], key.removeprefix("stage.")
        if where.setdefault(name, value) != value:
            raise ValueError(f"{key} is {json.dumps(where[name], ensure_ascii=False)} already")

    def _filter(self, path: str, section: dict[str, Any], tasks: Any) -> list[dict[str, Any]]:
        """Return the filter that a section becomes, in a list; none for one that is not taken."""
        (named, name), args = _class_of(section), section.get("args") or {}
        if name in nvflare_table.FILTERS and {"train", "*"} & {*(tasks or "*")}:
            own = {key: args[key] for key in args if key not in nvflare_table.NEEDLESS}
            return [arguments.component({"type": nvflare_table.FILTERS[name], "args": own})]
        if name not in _NOT_NEEDED:
            unknown = _NO_COUNTERPART.get(name, _UNKNOWN)
            is_known = name in nvflare_table.FILTERS
            reason = "filters are applied to trainings" if is_known else unknown
            self._note(f"{path} {named}", args, reason)
        return []

    def _copy(self, path: Path) -> None:
        """Enter a file of the code; it keeps its place, so that packages stay packages."""
        parts = path.relative_to(self.job.root).parts
        target = "/".join(parts[parts.index("custom") + 1 :])
        self.file, first = "/".join(parts), self.job.files.get(target, path)
        if "__pycache__" in parts or (path.is_dir() and not path.is_symlink()):
            return
        if not path.is_file() or not path.resolve().is_relative_to(self.job.root):
            self._note("", "", "it is no file of this folder; not copied")
        elif target in (JOB_FILE, _ARRAY_FILE) or not cmp(first, path, shallow=False):
            self._note("", "", f"not copied: the job has another {target}")
        else:
            self.job.files[target] = first

    def _count(self, value: Any, _: object) -> dict[str, Any]:
        if isinstance(value, int) and value > self.count:
            raise ValueError(f"the job has {self.count} sites")
        return {} if value == self.count else {"": value}

    def _timeout(self, value: Any, _: object) -> dict[str, Any]:
        if not value:
            raise ValueError("no limit, while clients.round_timeout is an hour unless it is set")
        return {"": value}

    def _patterns(self, value: Any, _: object) -> dict[str, Any]:
        before = self.values.pop("aggregation.exclude", [])
        return {"": [*dict.fromkeys([*before, str(value)])]}

    def _sgd(self, value: Any, _: object) -> dict[str, Any]:
        return {f".{key}": inner for key, inner in arguments.sgd_section(value).items()}

    def _model(self, value: Any, _: object) -> dict[str, Any]:
        """Convert a class with arguments, the path of a class, the id of a component, an array."""
        if isinstance(value, list):
            import numpy as np

            self.job.array = np.asarray(value, dtype=np.float32)
            return {".initial": _ARRAY_FILE}
        if isinstance(value, str):
            section = self.components.get(value, {"path": value})
            self.models |= {value} & self.components.keys()
            value = {key: section[key] for key in ("path", "args") if key in section}
        return {f".{key}": inner for key, inner in class_section(value).items()}

    def _checkpoint(self, value: Any, _: object) -> dict[str, Any]:
        """Convert the path of a file with weights; one in the job folder is copied."""
        for folder in (self.job.root, self.app, self.app / "custom"):
            path = (folder / value).resolve()
            if path.is_file() and path.suffix == ".npy":
                import numpy as np

                # Unlike numpy.load, it takes nothing but arrays of plain numbers.
                self.job.array = np.lib.format.open_memmap(path, mode="r")
                return {"": _ARRAY_FILE}
            if path.is_file() and path.is_relative_to(self.job.root):
                self.job.files[path.name] = path
                return {"": path.name}
        return {"": value}

    def _script(self, value: Any, args: Arguments) -> dict[str, Any]:
        """Convert a script in the folder custom, with its arguments."""
        custom, named = self.app / "custom", _CUSTOM.sub("", value)
        if not (custom / named).resolve().is_relative_to(custom.resolve()):
            raise UsageError(f"{self.file}: the script {value} lies outside of the folder custom")
        if not (custom / named).is_file() and "/" not in named:
            named = next((p.relative_to(custom).as_posix() for p in custom.rglob(named)), named)
        words = args.get("task_script_args") or ""
        if names := re.findall(r"\{\w+\}", words):
            self._note("", words, f"{', '.join(names)} is not filled in")
        return {".script": named, **({".args": words} if words else {})}

    def _command(self, value: Any, _: object) -> dict[str, Any]:
        """Convert the command line that starts a script."""
        words = shlex.split(value) if isinstance(value, str) else value
        at = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
        if at is None:
            raise ValueError("it starts no Python file, as train.script is")
        keys = self._script(words[at], {"task_script_args": shlex.join(words[at + 1 :])})
        launcher = shlex.join(words[:at])
        is_plain = arguments.PLAIN_COMMAND.fullmatch(launcher) is not None
        return keys if is_plain else {**keys, ".command": launcher}
