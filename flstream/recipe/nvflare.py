"""Conversion of NVFlare's job folders into jobs; nothing of a folder is imported or run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from filecmp import cmp
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flstream.errors import UsageError
from flstream.job import JobError, Problem, load_job, render_values
from flstream.recipe.arguments import (
    PLAIN_COMMAND,
    STREAMING_KEYS,
    UNNEEDED,
    component,
    metric_mode,
    put,
    sgd_section,
)
from flstream.recipe.initial_model import NUMPY_KEY, class_section
from flstream.recipe.job_folder import JOB_FILE, whole_folder
from flstream.recipe.nvflare_table import ARGUMENTS, CLASSES, TOP, UNKNOWN, Key, Known, NotTaken
from flstream.text import natural_key, printable, shortened

_SUFFIXES = (".json", ".conf")  # of two files NVFlare reads the JSON
_LISTS = ("workflows", "executors", "components", "handlers")
_FILTERS = {"task_result_filters": "up", "task_data_filters": "down"}
_COUNTS = ("min_clients", "num_clients", "min_responses_required")
_SIDES = ("config_fed_server", "config_fed_client")
_ORDER = (
    *("name", "rounds", "stop_when", "patience", "clients", "model", "train", "workflow"),
    *("aggregation", "server_optimizer", "filters", "streaming", "tracking"),
)
_ARRAY_FILE = "initial.npz"
# People's files have a few KiB; a parser of HOCON takes seconds for this.
_MOST_BYTES = 1 << 18
_VARIABLE = re.compile(r"\{(\w+)\}")
_INCLUDE = re.compile(r"\binclude\s*(\"|required\b|file\b|url\b|package\b)", re.IGNORECASE)
_CUSTOM = re.compile(r"^(\{JOB_CUSTOM_DIR\}/|(\./)?custom/|\./)")

Kind = Literal["becomes", "not needed", "no counterpart"]


class Note(NamedTuple):
    """Outcome of one setting of a job folder.

    Attributes:
        file: Path of the file, relative to the job folder.
        path: Place in the file, such as ``workflows[0].args.num_rounds``.
        kind: Whether it was converted, needs no counterpart, or has none.
        word: Keys of the job file that it became, or the reason why none.
        shown: Class of a component, or value of a setting.
    """

    file: str
    path: str
    kind: Kind
    word: str
    shown: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether the setting has no effect in the converted job."""
        return self.kind == "no counterpart"

    @property
    def text(self) -> str:
        """The note as one line, without the file."""
        verdict = f"becomes {self.word}" if self.kind == "becomes" else f"{self.kind}: {self.word}"
        place = " ".join(part for part in (self.path, self.shown) if part)
        return printable(f"{place}: {verdict}" if place else verdict)


@dataclass
class Conversion:
    """Job that a job folder becomes.

    Attributes:
        root: Path of the job folder.
        name: Name of the job.
        values: Values of the job file by key; sections are dicts.
        files: Files to copy, by their path in the new folder.
        array: Initial array to write; None for none.
        notes: Outcome of each setting, file by file.
    """

    root: Path
    name: str = "job"
    values: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    array: Any = None
    notes: list[Note] = field(default_factory=list)


def convert(source: Path, name: str | None = None) -> Conversion:
    """Convert a job folder, or a configuration alone. Its code is not imported.

    Args:
        source: Path of the folder, or of a file such as ``config_fed_server.conf``.
        name: Name of the job; None to make one from that which it has in NVFlare.

    Raises:
        UsageError: It cannot be read, or is no job folder of NVFlare.
    """
    try:
        return _converted(source.resolve(strict=True), name)
    except OSError as error:
        raise UsageError(f"{error.filename or source} cannot be read: {error.strerror}") from error


def check_free(folder: Path) -> None:
    """Check that a new folder can be made here, or that there is an empty one.

    Raises:
        UsageError: There is something else.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; name a new folder")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error


def write_job(conversion: Conversion, folder: Path) -> list[str]:
    """Write a converted job into a new or empty folder, and return its files' paths, sorted.

    Raises:
        UsageError: The folder is not empty, or cannot be written; nothing is left in it then.
    """
    check_free(folder)
    lost = [note for note in conversion.notes if note.is_lost]
    lines = [f"# From the NVFlare job folder {printable(conversion.root.name)}."]
    lines += ["#", "# Not taken, since there is no counterpart:"] if lost else []
    for file, notes in by_file(lost):
        lines += [f"#   {file}", *(f"#     {note.text}" for note in notes)]
    with whole_folder(folder) as scratch:
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


def by_file(notes: Iterable[Note]) -> Iterator[tuple[str, list[Note]]]:
    """Yield each file with its notes; the notes come file by file."""
    for file, group in groupby(notes, key=lambda note: note.file):
        yield printable(file), list(group)


def _converted(source: Path, name: str | None) -> Conversion:
    root = source if source.is_dir() else source.parent
    paths = [source] if root != source else _configurations(root)
    if root != source and source.suffix not in _SUFFIXES:
        raise UsageError(f"{source} is no configuration; its suffix is none of .json, .conf")
    if not any(path.stem != "meta" for path in paths):
        raise UsageError(
            f"{root} is no job folder of NVFlare: it has no config_fed_server nor "
            "config_fed_client (.json, .conf), in itself or in the folder of an app"
        )
    files = {path: _read(path, path.relative_to(root).as_posix()) for path in paths}
    meta = next((files[path] for path in paths if path.stem == "meta"), {})
    folder = root.parent if root.name == "config" else root
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(meta.get("name") or folder.name))
    draft = _Draft(Conversion(root, name or plain.strip("._-")[:100] or "job"))
    draft.put_sites(meta.get("deploy_map") or {}, [*files.values()])
    for path, values in files.items():
        draft.convert(path, values)
    draft.finish()
    return draft.job


def _configurations(root: Path) -> list[Path]:
    """Return the meta file, and the configurations of all apps."""
    found = [each for suffix in _SUFFIXES for each in root.rglob(f"*{suffix}")]
    known = [p for p in found if re.fullmatch(r"meta|config_fed_(server|client)", p.stem)]
    first = {p.with_suffix(""): p for p in reversed(known) if "custom" not in p.parts}
    return sorted(first.values(), key=lambda p: (p.stem != "meta", "client" in p.stem, p))


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
    except UnicodeError:
        raise UsageError(f"{name} has a text with a character that no file may have") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply to be read") from None
    except ValueError as error:
        raise UsageError(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or b"\\u0000" in plain:
        raise UsageError(f"{name} is no configuration of NVFlare, which is a mapping of names")
    variables = {k: v for k, v in values.items() if isinstance(v, str | bool | int | float)}
    longest = max((len(str(each)) for each in variables.values()), default=0)
    if longest * plain.count(b"{") > 10 * _MOST_BYTES:
        raise UsageError(f"{name} has variables that stand for too long a text")
    return {key: _filled(value, variables) for key, value in values.items()}


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
    if isinstance(value, dict):
        return {key: _filled(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, variables) for inner in value]
    if not isinstance(value, str):
        return value
    if (whole := _VARIABLE.fullmatch(value.strip())) and whole[1] in variables:
        return variables[whole[1]]
    return _VARIABLE.sub(lambda match: str(variables.get(match[1], match[0])), value)


def _rank(name: str) -> int:
    """Return the place of a class in the table; others come last."""
    return [*CLASSES, name].index(name)


def _counts(values: Any) -> Iterator[int]:
    """Yield every number of sites that a configuration asks for."""
    for key, inner in values.items() if isinstance(values, dict) else ():
        if key in _COUNTS and type(inner) is int and 0 < inner <= 1_000_000:
            yield inner
    if isinstance(values, dict | list):
        for inner in values.values() if isinstance(values, dict) else values:
            yield from _counts(inner)


def _class_of(section: Mapping[str, Any]) -> tuple[str, str]:
    """Return a section's class as it is named, and its name if it is one of NVFlare's."""
    names = [section.get(key) for key in ("path", "class_path", "name")]
    named = next((name for name in names if isinstance(name, str) and name), "")
    is_theirs = named.startswith("nvflare.") or "." not in named
    return named, named.rpartition(".")[2] if is_theirs else ""


class _NotTakenError(Exception):
    """Reason why a value becomes no key."""

    def __init__(self, reason: str, unneeded: bool = False) -> None:
        super().__init__(reason)
        self.rule = NotTaken(reason, unneeded)


class _Draft:
    """A conversion under way: keys by their dotted names, and a note on each setting."""

    def __init__(self, job: Conversion) -> None:
        self.job = job
        self.values: dict[str, Any] = {}
        self.stages: list[dict[str, Any]] = []
        self.filters: dict[tuple[str, str], dict[str, list[Any]]] = {}
        self.sites: dict[str, str] = {}
        self.count: int | None = None
        self.models: set[str] = set()

    def put_sites(self, deploy_map: Mapping[str, Any], files: Iterable[dict[str, Any]]) -> None:
        """Give the job its sites: those of the deploy map, or as many as it needs."""
        listed = [each for targets in deploy_map.values() for each in targets]
        groups = [each["sites"] if isinstance(each, dict) else [each] for each in listed]
        names = [name for group in groups for name in group if name != "server"]
        if "@ALL" in names or not names:
            self.count = max((n for each in files for n in _counts(each)), default=None)
        else:
            plain = {name: re.sub(r"[^A-Za-z0-9._-]+", "-", name) for name in names}
            self.sites = {n: p if n == p else f"site-{p}"[:64] for n, p in plain.items()}
            self.count = len(self.sites)
        sites = [*self.sites.values()]
        if sites != [f"site-{n + 1}" for n in range(len(sites))]:
            self.values["clients.names"] = sites
        elif self.count:
            self.values["clients.count"] = self.count

    def convert(self, path: Path, values: dict[str, Any]) -> None:
        """Convert a configuration: its classes in the order of the table, then all else."""
        self.file, self.side = path.relative_to(self.job.root).as_posix(), path.stem
        self.app = path.parent.parent if path.parent.name == "config" else path.parent
        classes: list[tuple[str, dict[str, Any]]] = []
        for key in (*_LISTS, *_FILTERS):
            sections = values.get(key) or []
            if not isinstance(sections, list) or not all(isinstance(s, dict) for s in sections):
                raise UsageError(f"{self.file}: {key} must be a list of sections")
            for at, section in enumerate(sections):
                if key in _FILTERS:
                    for n, each in enumerate(section.get("filters") or ()):
                        self._filter(f"{key}[{at}].filters[{n}]", each, section, _FILTERS[key])
                else:
                    inner = ".executor" if key == "executors" else ""
                    classes.append((f"{key}[{at}]{inner}", section.get("executor", section)))
        self.components = {str(each.get("id")): each for _, each in classes}
        for place, section in sorted(classes, key=lambda each: _rank(_class_of(each[1])[1])):
            self._class(place, section)
        text = path.read_text(errors="replace")
        for key in values.keys() - {*_LISTS, *_FILTERS}:
            rule: Key | NotTaken = TOP.get(key, UNKNOWN)
            if key in STREAMING_KEYS:
                rule = Key(f"streaming.{key}")
            elif key in UNNEEDED:
                rule = NotTaken(UNNEEDED[key], True)
            elif f"{{{key}}}" in text:
                rule = NotTaken("it is a part of other settings", True)
            self._setting(key, values[key], rule, {})

    def finish(self) -> None:
        """Copy the code, and put the keys together."""
        for path in sorted(self.job.root.rglob("custom/**/*")):
            self._copy(path)
        for direction in _FILTERS.values():
            sides = [self.filters.get((direction, side), {}) for side in _SIDES]
            if filters := [each for lists in sides for each in next(iter(lists.values()), [])]:
                self.values[f"filters.{direction}"] = filters
        stop, prefix = self.values.get("stop_when"), "workflow.args."
        metric = re.match(r"\s*([^\s<>=]+)", stop or "")
        if metric is not None:
            self.values.setdefault(f"{prefix}key_metric", metric[1])
        key_metric = self.values.get(f"{prefix}key_metric")
        if key_metric is not None and metric_mode(str(key_metric), stop) == "min":
            self.values.setdefault(f"{prefix}key_metric_mode", "min")
        if self.stages:
            keys = [key for key in self.values if key.startswith(prefix)]
            shared = {key.removeprefix(prefix): self.values.pop(key) for key in keys}
            args = [{**stage.pop("args"), **shared} for stage in self.stages]
            whole = [
                {**s, **({"args": a} if a else {})} for s, a in zip(self.stages, args, strict=True)
            ]
            self.values["workflow"] = whole if len(whole) > 1 else whole[0]
        values = {"name": self.job.name, **self.values, "train.alias": "nvflare"}
        for key in sorted(values, key=lambda key: _ORDER.index(key.partition(".")[0])):
            put(self.job.values, key, values[key])
        files = [*dict.fromkeys(note.file for note in self.job.notes)]
        self.job.notes.sort(key=lambda note: (files.index(note.file), natural_key(note.path)))

    def _note(self, path: str, rule: Key | NotTaken | str, shown: object = "") -> None:
        kind: Kind = "becomes"
        if isinstance(rule, NotTaken):
            kind, rule = ("not needed" if rule.unneeded else "no counterpart"), rule.reason
        text = shown if isinstance(shown, str) else f"= {json.dumps(shown, ensure_ascii=False)}"
        self.job.notes.append(Note(self.file, path, kind, str(rule), shortened(text, 200)))

    def _put(self, key: str, value: Any) -> None:
        """Give a key a value, unless it has another."""
        where, name = self.values, key
        if key.startswith("stage."):
            where, name = self.stages[-1]["args"], key.removeprefix("stage.")
        if where.setdefault(name, value) != value:
            raise _NotTakenError(f"{key} is {json.dumps(where[name], ensure_ascii=False)} already")

    def _class(self, path: str, section: dict[str, Any]) -> None:
        """Convert an object that NVFlare makes, and its arguments."""
        (named, name), args = _class_of(section), section.get("args") or {}
        if not named or not isinstance(args, dict):
            raise UsageError(f"{self.file}: {path} has no path or name, or its args are no section")
        known = CLASSES.get(name, UNKNOWN)
        if section.get("disabled") is True:
            return self._note(path, NotTaken("it is disabled", True), named)
        if str(section.get("id")) in self.models:
            return self._note(path, "model.factory, model.args", named)
        if isinstance(known, NotTaken):
            shown = f"{named} = {json.dumps(args, ensure_ascii=False)}" if args else named
            return self._note(path, known, named if known.unneeded else shown)
        if known.workflow:
            self.stages.append({"type": known.workflow, "args": {}})
        self._note(path, known.becomes, named)
        rules = {**ARGUMENTS, **known.arguments}
        for each in sorted(args, key=lambda name: [*rules, name].index(name)):
            self._setting(f"{path}.args.{each}", args[each], rules.get(each, UNKNOWN), args)
        for key, value in known.defaults.items():
            is_numpy = args.get("server_expected_format", "numpy") == "numpy"
            if key not in self.values and (key != "train.exchange_format" or is_numpy):
                if key != "model.initial":
                    self.values[key] = value
                elif "model.factory" not in self.values:
                    self._put_array(value)
                self._note(path, f"{key} = {value}, its default", named)
            elif key == "tracking.type" and self.values[key] != value:
                self._note(path, NotTaken(f"{key} is {self.values[key]} already"), named)

    def _setting(
        self, path: str, value: Any, rule: Key | NotTaken, args: Mapping[str, Any]
    ) -> None:
        """Convert an argument, or a key at the top; the other arguments may belong to it."""
        asks = value not in (None, "", [], {})
        try:
            if not asks or (value is False and isinstance(rule, NotTaken)):
                raise _NotTakenError("nothing is asked for", unneeded=True)
            if isinstance(rule, NotTaken):
                raise _NotTakenError(*rule)
            if rule.converter:
                value_of: Callable[[Any, Mapping[str, Any]], Any]
                value_of = getattr(self, f"_{rule.converter}")
                made = value_of(value, args)
            else:
                made = value
            several = isinstance(made, dict) and rule.converter in (
                "model",
                "sgd",
                "script",
                "command",
            )
            keys = (
                {f"{rule.name}.{k}": v for k, v in made.items()} if several else {rule.name: made}
            )
            for key, each in keys.items():
                self._put(key, each)
            word = ", ".join(keys).replace("stage.", "workflow.args.")
            self._note(path, word, "" if isinstance(value, dict | list) else value)
        except _NotTakenError as error:
            self._note(path, error.rule, value)

    def _filter(
        self, path: str, section: dict[str, Any], group: Mapping[str, Any], direction: str
    ) -> None:
        """Convert a filter; apps of several sites may list the same ones."""
        (named, name), args = _class_of(section), section.get("args") or {}
        known = CLASSES.get(name, UNKNOWN)
        if isinstance(known, Known):
            kept = {k: v for k, v in args.items() if not isinstance(ARGUMENTS.get(k), NotTaken)}
            lists = self.filters.setdefault((direction, self.side), {})
            own = lists.setdefault(self.file, [])
            if not {"train", "*"} & {*group.get("tasks", ["*"])}:
                known = NotTaken("filters are applied to trainings")
            else:
                own.append(component({"type": known.filter, "args": kept}))
                if own != next(iter(lists.values()))[: len(own)]:
                    known = NotTaken("all sites have the same filters here")
        rule = known if isinstance(known, NotTaken) else f"a part of filters.{direction}"
        self._note(path, rule, f"{named} = {json.dumps(args)}" if args else named)

    def _copy(self, path: Path) -> None:
        """Enter a file of the code; it keeps its place, so that packages stay packages."""
        parts = path.relative_to(self.job.root).parts
        target = "/".join(parts[parts.index("custom") + 1 :])
        self.file, reason = path.relative_to(self.job.root).as_posix(), ""
        if "__pycache__" in parts or (path.is_dir() and not path.is_symlink()):
            return
        first = self.job.files.setdefault(target, path)
        if not path.is_file() or not path.resolve().is_relative_to(self.job.root):
            del self.job.files[target]
            reason = "it is no file of this folder; not copied"
        elif target in (JOB_FILE, _ARRAY_FILE):
            del self.job.files[target]
            reason = f"not copied: {target} is the job's own"
        elif first != path and not cmp(first, path, shallow=False):
            reason = f"not copied: {first.relative_to(self.job.root).as_posix()} differs, and is"
        if reason:
            self._note("", NotTaken(reason))

    def _sites(self, value: Any, _: object) -> int:
        if type(value) is not int or self.count is None or value > self.count:
            raise _NotTakenError(f"the job has {self.count} sites")
        if value == self.count:
            raise _NotTakenError("it is all sites unless it is set", unneeded=True)
        return value

    def _wait(self, value: Any, _: object) -> Any:
        if value == 0 and "clients.min_updates" in self.values:
            raise _NotTakenError("the rest is waited for as long as a task may take")
        if value == 0:
            raise _NotTakenError("all sites of a round have to answer", unneeded=True)
        return value

    def _timeout(self, value: Any, _: object) -> Any:
        if value == 0:
            raise _NotTakenError(
                "no limit, while clients.round_timeout is an hour unless it is set"
            )
        return value

    def _patterns(self, value: Any, _: object) -> list[Any]:
        return [*dict.fromkeys([*self.values.pop("aggregation.exclude", []), str(value)])]

    def _weights(self, value: Any, _: object) -> dict[str, Any]:
        return {self.sites.get(name, name): each for name, each in dict(value).items()}

    def _site_names(self, value: Any, _: object) -> list[str]:
        if not isinstance(value, list):
            raise _NotTakenError("all sites take part unless it is set", unneeded=True)
        return [self.sites.get(name, name) for name in value]

    def _lower(self, value: Any, _: object) -> Any:
        return value.lower() if isinstance(value, str) else value

    def _mode(self, value: Any, _: object) -> str:
        if not value:
            raise _NotTakenError(
                "the largest value is the best, unless it is a loss", unneeded=True
            )
        return "min"

    def _arrays(self, value: Any, _: object) -> Any:
        if value == "raw":
            raise _NotTakenError("a script receives what the server sends", unneeded=True)
        return value

    def _sgd(self, value: Any, _: object) -> dict[str, Any]:
        try:
            return sgd_section(value)
        except (ValueError, AttributeError) as error:
            raise _NotTakenError(str(error)) from None

    def _model(self, value: Any, _: object) -> dict[str, Any]:
        """Convert a class with arguments, the path of a class, the id of a component, an array."""
        if isinstance(value, list):
            return self._put_array(value)
        if isinstance(value, str):
            section = self.components.get(value, {"path": value})
            self.models |= {value} & self.components.keys()
            value = {key: section[key] for key in ("path", "args") if key in section}
        try:
            return class_section(value)
        except (ValueError, AttributeError) as error:
            raise _NotTakenError(str(error)) from None

    def _put_array(self, value: Any) -> dict[str, Any]:
        import numpy as np

        try:
            array = np.asarray(value)
            self.job.array = array.astype(np.float32) if isinstance(value, list) else array
        except (ValueError, TypeError):
            raise _NotTakenError("it is no array of numbers") from None
        self.values.setdefault("model.initial", _ARRAY_FILE)
        return {"initial": _ARRAY_FILE}

    def _checkpoint(self, value: Any, _: object) -> str:
        """Convert the path of a file with weights; one in the job folder is copied."""
        folders = (self.job.root, self.app, self.app / "custom")
        paths = [(folder / str(value)).resolve() for folder in folders]
        path = next((each for each in paths if each.is_file()), Path(str(value)))
        if path.suffix == ".npy" and path.is_file():
            import numpy as np

            try:
                # Unlike numpy.load, it takes nothing but arrays of plain numbers.
                return str(self._put_array(np.lib.format.open_memmap(path, mode="r"))["initial"])
            except ValueError as error:
                raise _NotTakenError(f"{path.name} cannot be read: {error}") from None
        if not Path(str(value)).is_absolute() and path.is_relative_to(self.job.root):
            self.job.files[path.name] = path
            return path.name
        return str(value)

    def _script(self, value: Any, args: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a script in the folder custom, with its arguments."""
        custom, named = self.app / "custom", _CUSTOM.sub("", str(value))
        path = (custom / named).resolve()
        if not path.is_relative_to(custom.resolve()):
            raise UsageError(
                f"{self.file}: the script {value} lies outside of the app's folder custom"
            )
        if not path.is_file() and "/" not in named:
            named = next((p.relative_to(custom).as_posix() for p in custom.rglob(named)), named)
        words = args.get("task_script_args") or ""
        if names := [each for each in re.findall(r"\{\w+\}", words)]:
            self._note(
                "", NotTaken(f"{', '.join(names)} of the script's arguments is not filled in")
            )
        return {"script": named, **({"args": words} if words else {})}

    def _command(self, value: Any, _: object) -> dict[str, Any]:
        """Convert the command line that starts a script."""
        try:
            words = shlex.split(value) if isinstance(value, str) else list(value)
            at = next(n for n, word in enumerate(words) if word.endswith(".py"))
        except (ValueError, StopIteration, TypeError, AttributeError):
            raise _NotTakenError("it starts no Python file, as train.script is") from None
        keys = self._script(words[at], {"task_script_args": shlex.join(words[at + 1 :])})
        launcher = shlex.join(words[:at])
        return keys if PLAIN_COMMAND.fullmatch(launcher) else {**keys, "command": launcher}
