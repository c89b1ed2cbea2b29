"""What becomes of the sites' scripts, one for all sites, and of the code beside them."""

from __future__ import annotations

import ast
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from filecmp import cmp
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job.imports import all_imports
from flstream.recipe.job_folder import JOB_FILE
from flstream.recipe.nvflare.draft import Argument, ConfiguredClass, JobDraft, Place, SiteScript
from flstream.recipe.nvflare.folders import CUSTOM, JobFolder
from flstream.recipe.nvflare.notes import Note
from flstream.recipe.nvflare.variables import open_variables
from flstream.recipe.training_scripts import PLAIN_COMMANDS, by_name

_PREFIXES = ("{JOB_CUSTOM_DIR}/", f"./{CUSTOM}/", f"{CUSTOM}/", "./")
_FORMATS, _AS_SENT = ("pytorch", "numpy"), "raw"


def script_path(draft: JobDraft, argument: Argument) -> Note:
    """Convert the path of a script that an executor runs; the owner has its arguments."""
    value, owner = argument.value, argument.owner
    if value in (None, ""):
        return argument.not_needed("no script is given")
    if not isinstance(value, str) or owner is None:
        return argument.lost("train.script must be the path of a Python file")
    args = owner.args.get("task_script_args") or ""
    try:
        shlex.split(args)
    except (ValueError, AttributeError):
        return argument.lost("its arguments are not quoted as on a shell")
    return _add(draft, argument, value, args, "")


def script_args(draft: JobDraft, argument: Argument) -> Note:
    """Note on the arguments of an executor's script, which go with it."""
    if not argument.value:
        return argument.not_needed("there are none")
    if any(each.argument.owner is argument.owner for each in draft.scripts):
        return argument.becomes("train.args")
    return argument.lost("the script that they are for is not that of the job")


def command(draft: JobDraft, argument: Argument) -> Note:
    """Convert the command line that starts a script."""
    value = argument.value
    if value in (None, "", []):
        return argument.not_needed("no command is given")
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return argument.lost("it is no command line")
    at = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if at is None:
        return argument.lost("train.script must be a Python file, and it starts none")
    started_by = shlex.join(words[:at])
    is_plain = not started_by or PLAIN_COMMANDS.fullmatch(started_by) is not None
    args = shlex.join(words[at + 1 :])
    return _add(draft, argument, words[at], args, "" if is_plain else started_by)


def exchange_format(draft: JobDraft, argument: Argument) -> Note:
    """Convert what a script receives."""
    value = argument.value
    if value in (None, _AS_SENT):
        return argument.not_needed("a script receives what the server sends")
    if value not in _FORMATS:
        return argument.lost(f"train.exchange_format has {' and '.join(_FORMATS)}")
    key = "train.exchange_format"
    return argument.becomes_unless(draft.put(key, value), key)


def numpy_by_default(draft: JobDraft, owner: ConfiguredClass) -> Iterator[Note]:
    """Note on an executor that gives its script arrays unless it is asked for something else."""
    asked = owner.args.get("params_exchange_format") or _AS_SENT
    sent = owner.args.get("server_expected_format") or "numpy"
    if asked == _AS_SENT and sent == "numpy" and "train.exchange_format" not in draft.values:
        draft.values["train.exchange_format"] = "numpy"
        yield owner.place.note("becomes", "train.exchange_format = numpy, its default", owner.named)


def _add(draft: JobDraft, argument: Argument, named: str, args: str, command: str) -> Note:
    owner = argument.owner
    assert owner is not None
    custom, path = owner.app.custom, named
    for prefix in _PREFIXES:
        path = path.removeprefix(prefix)
    # It may be the path of any file of this machine, which would be copied.
    if os.path.isabs(path) or ".." in Path(path).parts:
        raise _outside(argument, named)
    found = None if custom is None else _find(custom, path)
    if found is not None and not found.resolve().is_relative_to(owner.app.root):
        raise _outside(argument, named)
    if custom is not None and found is not None:
        path = found.relative_to(custom).as_posix()
        if _imports_from_above(found, custom):
            # Only the folder of a script is looked through for what it imports.
            path = found.name
            draft.files.setdefault(path, found)
    script = SiteScript(argument, owner.app.sites, path, found, args, command)
    if draft.scripts and (difference := _difference(draft.scripts[0], script)):
        return argument.lost(f"{difference}; there is one for all sites")
    draft.scripts.append(script)
    keys = [
        "train.script",
        *(["train.args"] if args else []),
        *(["train.command"] if command else []),
    ]
    return argument.becomes(*keys)


def _outside(argument: Argument, named: str) -> UsageError:
    file, path = argument.place
    why = f"the script {named} lies outside of the app's folder {CUSTOM}; put it there"
    return UsageError(f"{file}: {path}: {why}")


def _find(custom: Path, path: str) -> Path | None:
    """Return the path of a script, which NVFlare looks for in all folders of the code."""
    if (custom / path).is_file() or "/" in path:
        return custom / path if (custom / path).is_file() else None
    found = [Path(folder, path) for folder, _, names in os.walk(custom) if path in names]
    return found[0] if len(found) == 1 else None


def _imports_from_above(script: Path, custom: Path) -> bool:
    """Whether a script in a folder of its own imports what lies at the top of the code."""
    if script.parent == custom:
        return False
    with suppress(OSError, SyntaxError, ValueError):
        for each in all_imports(ast.parse(script.read_bytes())):
            name = each.module.partition(".")[0]
            if _has_module(custom, name) and not _has_module(script.parent, name):
                return True
    return False


def _has_module(folder: Path, name: str) -> bool:
    return bool(name) and ((folder / f"{name}.py").is_file() or (folder / name).is_dir())


def put_scripts(draft: JobDraft) -> Iterator[Note]:
    """Give the job the script of its sites; yield notes on arguments of a site's own."""
    if not draft.scripts:
        return
    first = draft.scripts[0]
    draft.put("train.script", first.path)
    if first.command:
        draft.put("train.command", first.command)
    yield from _put_args(draft, draft.scripts)
    for each in draft.scripts:
        if names := open_variables(each.args):
            yield each.argument.lost(
                f"{', '.join(names)} is not filled in; clients.args has arguments of a site alone"
            )


def _difference(first: SiteScript, other: SiteScript) -> str | None:
    """Say in what a script differs from another; None if only its arguments do."""
    if first.path != other.path:
        return f"train.script is {first.path}"
    if first.source and other.source and not cmp(first.source, other.source, shallow=False):
        return f"train.script is another {first.path}, of {_whose(first)}"
    if first.command != other.command:
        return f"train.command is {first.command or 'python'}"
    return None


def _whose(script: SiteScript) -> str:
    return ", ".join(script.sites) if script.sites else script.argument.place.file


def _put_args(draft: JobDraft, scripts: Sequence[SiteScript]) -> Iterator[Note]:
    """Give the job the arguments that all sites have, and each site its own."""
    first, *others = scripts
    if all(each.args == first.args for each in others):
        if first.args:
            draft.put("train.args", first.args)
        return
    try:
        named = [by_name(each.args, "the arguments of the script") for each in scripts]
        if any(each.sites is None for each in scripts):
            raise UsageError("the sites have no names in the deploy map")
    except UsageError as error:
        if first.args:
            draft.put("train.args", first.args)
        for each in others:
            if each.args != first.args:
                yield each.argument.lost(f"train.args is that of {_whose(first)}: {error}")
        return
    shared = {key: value for key, value in named[0].items() if _is_in_all(key, value, named)}
    if shared:
        draft.put("train.args", shared)
    for each, args in zip(scripts, named, strict=True):
        own = {key: value for key, value in args.items() if key not in shared}
        for site in each.sites or ():
            if own:
                draft.values.setdefault("clients.args", {})[draft.site(site)] = own
        if own:
            yield each.argument.becomes("clients.args")


def _is_in_all(key: str, value: Any, named: Sequence[Mapping[str, Any]]) -> bool:
    return all(key in args and args[key] == value for args in named)


def list_code(draft: JobDraft, folder: JobFolder) -> Iterator[Note]:
    """Enter the files of all apps' code; yield notes on those that are not copied.

    Files keep their places below the folder `custom`, so that packages stay packages.
    """
    for app in folder.apps:
        for path in _code_files(app.custom) if app.custom is not None else ():
            target = path.relative_to(app.custom or path).as_posix()
            place = Place(path.relative_to(folder.root).as_posix(), "")
            if not path.is_file() or not path.resolve().is_relative_to(folder.root):
                yield place.note("no counterpart", "it is no file of this folder; not copied")
            elif target == JOB_FILE or target in draft.arrays:
                yield place.note("no counterpart", f"not copied: {target} is the job's own")
            elif target in draft.files and not cmp(draft.files[target], path, shallow=False):
                first = draft.files[target].relative_to(folder.root).as_posix()
                yield place.note("no counterpart", f"not copied: {first} differs, and is")
            else:
                draft.files[target] = path


def _code_files(custom: Path) -> Iterator[Path]:
    """Yield the paths of files, and of links to folders, in order."""
    for where, folders, names in os.walk(custom):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        links = [name for name in folders if Path(where, name).is_symlink()]
        yield from (Path(where, name) for name in sorted([*names, *links]))
