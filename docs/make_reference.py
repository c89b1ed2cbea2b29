"""Writes docs/reference/ from the code: ``make docs``.

The text of each page stands in the code: keys of the job file with their sections, commands and
options with their help, functions and classes with their docstrings.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from typer.main import get_command

from flstream.cli import status
from flstream.cli.app import app
from flstream.job.keys import Key, Schema, job_schema, section_at
from flstream.job.values import render_value
from flstream.recipe.arguments import RecipeArguments
from flstream.runs.summary import Summary
from flstream.streaming.api import DownloadOptions
from flstream.streaming.refs import OfferOptions

FOLDER = Path(__file__).parent / "reference"
# Of these classes, flstream itself calls most methods; a user calls and reads these.
USED: Mapping[str, tuple[str, ...]] = {
    "Channel": ("__init__", "close"),
    "DownloadService": ("__init__", "offer", "attach", "detach", "close"),
    "FedJob": (
        *("__init__", "name", "to", "to_server", "to_clients", "configure"),
        *("set_per_site_config", "export_job", "simulator_run"),
    ),
    "JobError": ("problems",),
    "Layout": ("of", "tensors", "aliases", "nbytes", "names", "find", "subset", "overlapping"),
    "Receiver": ("__init__", "peer", "close"),
    "Ref": ("id", "token", "deliveries", "outcome", "wait", "abort"),
    "RunFailedError": ("run",),
    "SweepResult": ("directory", "settings", "best", "failures", "to_pandas"),
}
JOB = """\
# The job file

A job file has to give `name`, `rounds`, `clients.count` (or `clients.names`), `model.factory` (or
`model.initial`) and `train.script` (or `train.learner`); all other keys have defaults. It is HOCON:
JSON with comments, units, includes and substitutions.

```hocon
name = mine
seed = 7
rounds = 20
stop_when = "accuracy >= 0.97"            # or after 20 rounds

clients {
  count = 8
  per_round = 0.5                         # half of them, drawn anew each round
  min_updates = 3                         # a round goes on if one of the four fails
}

model { factory = "model:Net" }           # the callable Net in model.py, beside this file

train {
  script = client.py
  args { epochs = 3, lr = 0.05 }          # the script gets them as --epochs 3 --lr 0.05
}

streaming { tensor_download_chunk_size = 4 MiB }
checkpoints { keep = 3 }                  # the last three, and the best one besides
```

- `a.b = 1` and `a { b = 1 }` are the same. Paths start at the folder of the job file.
- Sizes: `2 MiB`, `2M` and `2097152` are the same; `2 MB` is 2,000,000 bytes. Durations: `600 s`,
  `10 minutes`, `500 ms`; a bare number is in seconds.
- `null` stands for no value; the entry of a key says what that means.
- `${seed}` takes the value of another key, as it is after all overrides: `--set`, `-n` and `-r`.
  These may use it, too. `${?HOME}` takes a variable of the environment, if there is one.
- `include required(file("base.conf"))` takes in another file, which has to be there.
- `a += 3` appends to the list that `a` is above it. A dotted key has no quotes: write
  `clients.args { "a.b" { lr = 0.1 } }`.
- `--set clients.count=4` on the command line overrides the file, and goes through the same checks.
- What has a type has its arguments in `args`: `{ type = topk, args { fraction = 0.05 } }`. The
  name of the type alone stands for one without arguments.

`flstream validate JOB` names all mistakes of single keys at once, an unknown key among them, then
those between keys, and of a sound job what it would do and need; `flstream validate --schema`
prints the JSON schema, for editors. The `job.conf` in a run directory has every key written out,
with its meaning. `make docs` writes this page from `flstream/job`, where each key has its one
definition; a workflow's own arguments are defined beside it, in `flstream/workflows`.
"""
SUMMARY = """\
# summary.json

Each run directory has a `summary.json`: what the run was, its results and its cost. It is written
when the run ends, also when the run fails or is stopped. Sizes are in bytes and times in seconds,
as plain numbers. Later versions may add fields; a field that is here stays. `flstream simulate
--json` prints the same document.
"""
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n", flags=re.MULTILINE)
_ITEM = re.compile(r"^\*{0,2}(\w[\w., ]*): ", flags=re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_JSON = {"int": "integer", "float": "number", "str": "string", "bool": "true or false"}


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    trackers, *trainers = (f"flstream.client.{name}" for name in ("tracking", "hf", "lightning"))
    client = [*_module("flstream.client"), *_module(trackers)]
    for trainer in trainers:
        client += _module(trainer, ["patch"])
    streaming = _module("flstream.streaming", (), (OfferOptions, DownloadOptions))
    return {
        "job": _page(JOB, _job_file()),
        "command-line": _page("# The command line", _commands()),
        "client": _page("# Client API", client),
        "recipe": _page("# Python API", _module("flstream.recipe", (), (RecipeArguments,))),
        "streaming": _page("# Streaming API", streaming),
        "summary": _page(SUMMARY, _records(Summary)),
    }


def _page(head: str, lines: Iterable[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join([head, "", *lines, ""]))


# The job file.


def _job_file() -> Iterator[str]:
    yield from ("## At the top", "", *_keys(job_schema(), ""), *_sections(job_schema(), ""))


def _sections(schema: Schema, above: str) -> Iterator[str]:
    """Yield the lines of the sections in a section."""
    for name, field in schema["properties"].items():
        inner, key = section_at(schema, name), f"{above}{name}"
        if inner is not None and name != "args":
            about = inner.get("description", "").splitlines()
            yield from ("", f"## `{key}`", "", *about, "", *_keys(inner, f"{key}."))
            common = inner["properties"].get("args", {}).get("properties", {})
            yield from _keys({"properties": common}, f"{key}.args.")
            yield from _kinds(inner, key, common)
            yield from _sections(inner, f"{key}.")
        elif "allOf" in field.get("items", {}) and name == "up":
            yield from _kinds(field["items"], "", {})


def _kinds(schema: Schema, key: str, common: Schema) -> Iterator[str]:
    """Yield the lines of each built-in type's own arguments.

    The key is the dotted name of the section; it is empty for an item of a list.
    """
    for case in schema.get("allOf", ()):
        kind = case["if"]["properties"]["type"]["const"]
        args = case["then"]["properties"]["args"]
        lines = [*_keys(args, f"{key or kind}.args.", common)]
        if lines or not key:
            meaning = "" if key else " ".join(args["description"].split())
            yield from ("", f"With `type = {kind}`: {meaning}".rstrip(), "", *lines)


def _keys(schema: Schema, above: str, without: Schema | None = None) -> Iterator[str]:
    """Yield a line for each key of a section, but for sections in it."""
    for name, field in schema["properties"].items():
        if name not in (without or {}) and section_at(schema, name) is None:
            key = Key(f"{above}{name}", field, name in schema.get("required", ()))
            default = "required" if key.required else f"default `{render_value(key.default)}`"
            yield f"- **`{key.name}`** ({key.allowed}; {default}): {' '.join(key.meaning.split())}"


# The command line.


def _commands() -> Iterator[str]:
    root: Any = get_command(app)
    yield from ("## Exit status", "")
    for name, about in _documented(inspect.getsource(status)).items():
        yield f"- `{getattr(status, name)}`: {_inline(about)}"
    yield from ("", "## `flstream`", "", *_parameters(root))
    for command in root.commands.values():
        arguments = [each for each in command.params if not _is_option(each)]
        words = [_value(each) if each.required else f"[{_value(each)}]" for each in arguments]
        name = f"flstream {command.name}"
        yield from ("", f"## `{name}`", "", f"`{' '.join([name, '[OPTIONS]', *words])}`", "")
        yield from _docstring(command.help)
        yield from _parameters(command)


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _value(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _parameters(command: Any) -> Iterator[str]:
    panel = ""
    for each in sorted(command.params, key=_is_option):
        title = each.rich_help_panel or ("Options" if _is_option(each) else "Arguments")
        if title != panel:
            yield from ("", f"{title}:", "")
        panel = title
        names = ", ".join([*each.opts, *each.secondary_opts]) if _is_option(each) else ""
        has_value = not getattr(each, "is_flag", False) and not getattr(each, "count", False)
        shown = f"{names} {_value(each) if has_value else ''}".strip()
        yield f"- **`{shown}`**: {_inline(each.help)}{_default_of(each, has_value)}"


def _default_of(parameter: Any, has_value: bool) -> str:
    if parameter.required:
        return " Required."
    if isinstance(parameter.show_default, str):
        return f" Default: {parameter.show_default}."
    shown = has_value and parameter.show_default and parameter.default not in (None, "", [], ())
    return f" Default: `{parameter.default}`." if shown else ""


# Functions and classes.


def _module(
    name: str, names: Sequence[str] = (), records: Iterable[type[Any]] = ()
) -> Iterator[str]:
    """Yield the lines of a module's public names, and of records that these take."""
    module = importlib.import_module(name)
    names = names or public_names(module)
    yield from ("", f"## `{name}`", "", *_docstring(inspect.getdoc(module) or ""))
    for public in names:
        yield from _entry(public, getattr(module, public), names)
    for record in records:
        yield from _entry(record.__name__, record, names)


def public_names(module: types.ModuleType) -> list[str]:
    """Return the public names of a module that are no modules, in their order."""
    listed = getattr(module, "__all__", None) or sorted(vars(module))
    own = {name: value for name, value in vars(module).items() if name in listed}
    return [n for n in listed if n[0] != "_" and not inspect.ismodule(own[n])]


def _entry(name: str, value: Any, names: Container[str]) -> Iterator[str]:
    """Yield the lines of a name: its heading, signature and docstring."""
    yield from ("", f"### `{name}`", "")
    first = getattr(value, "__name__", name)
    if first != name and first in names:
        yield f"Another name of `{first}`."
    elif inspect.isclass(value):
        yield from _class(name, value)
    elif callable(value):
        yield from (*_signature(name, value), *_docstring(inspect.getdoc(value) or ""))
    else:
        yield from _docstring(inspect.getdoc(type(value)) or "")


def _class(name: str, value: type) -> Iterator[str]:
    source = inspect.getsource(importlib.import_module(value.__module__))
    if issubclass(value, Enum):
        yield from _docstring(_documented(source).get(name) or inspect.getdoc(value) or "")
        said = _documented(source, name)
        for member in value:
            about = said.get(member.name, "")
            yield f"- `{member.name}` (`{member.value!r}`){': ' * bool(about)}{_inline(about)}"
        return
    record, used = _fields(value), USED.get(name)
    if "__init__" in vars(value) and not record and "__init__" in (used or ["__init__"]):
        yield from _signature(name, vars(value)["__init__"])
    about = inspect.cleandoc(value.__doc__ or "")
    yield from _docstring(about, {each: label for each, (label, _) in record.items()}, used)
    bases = [base.__name__ for base in value.__bases__ if base.__module__.startswith("flstream")]
    yield from ("", *(f"Base class: `{base}`." for base in bases if base[0] != "_"), "")
    rest = {each: pair for each, pair in record.items() if f"\n    {each}: " not in about}
    yield from (f"- **`{each}`** ({a}){': ' * bool(b)}{b}" for each, (a, b) in rest.items())
    for each, member in vars(value).items():
        if each[0] == "_" or (used and each not in used):
            continue
        method = inspect.unwrap(getattr(member, "fget", None) or getattr(value, each))
        if callable(method) and method.__doc__:
            yield from ("", f"#### `{name}.{each}`", "")
            if method.__name__ != each:
                yield f"Another name of `{method.__name__}`."
                continue
            yield from () if isinstance(member, property) else _signature(each, method)
            yield from _docstring(inspect.getdoc(method) or "")


def _signature(name: str, function: Any) -> Iterator[str]:
    """Yield a function's signature as its source has it, but for the function's own self."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    node = typing.cast(ast.FunctionDef, ast.parse(source).body[0])
    given, plain = node.args, [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + given.defaults
    words = [_parameter(each, default) for each, default in zip(plain, defaults, strict=True)]
    words += [f"*{ast.unparse(given.vararg)}"] if given.vararg else ["*"] * bool(given.kwonlyargs)
    words += map(_parameter, given.kwonlyargs, given.kw_defaults)
    words += [f"**{ast.unparse(given.kwarg)}"] if given.kwarg else []
    words = [word for word in words if word not in ("self", "cls")]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and name == node.name else ""
    line = f"{name}({', '.join(words)}){returned}"
    if len(line) > 88:
        line = f"{name}(\n    " + ",\n    ".join(words) + f",\n){returned}"
    yield from ("```python", line, "```", "")


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if argument.annotation else "="
    return ast.unparse(argument) + (f"{equals}{ast.unparse(default)}" if default else "")


def _fields(record: type) -> Mapping[str, tuple[str, str]]:
    """Return type and default of a record's fields, and a docstring of the field's own."""
    is_record = issubclass(record, tuple | msgspec.Struct) or typing.is_typeddict(record)
    if not is_record and "__dataclass_fields__" not in vars(record):
        return {}
    source = textwrap.dedent(inspect.getsource(record))
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    about, found = _documented(source, record.__name__), {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, default = node.target.id, node.value
            words = [f"`{ast.unparse(node.annotation)}`"]
            if isinstance(node.annotation, ast.Subscript) and "Annotated" in words[0]:
                hint, key = typing.cast(ast.Tuple, node.annotation.slice).elts
                words = [f"`{ast.unparse(hint)}`", f"sets `{ast.literal_eval(key)}`"]
            if isinstance(default, ast.Call):
                words += [f"default `{ast.unparse(k.value)}()`" for k in default.keywords[:1]]
            elif default is not None:
                words.append(f"default `{ast.unparse(default)}`")
            if name[0] != "_":
                found[name] = "; ".join(words), _inline(about.get(name, ""))
    return found


# summary.json.


def _records(record: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the fields of a record in JSON, and then those of the records that it has."""
    queue = [record]
    for each in queue:
        about = inspect.cleandoc(each.__doc__ or "")
        head = f"## `{each.__name__}`" if each is not record else "## At the top"
        yield from ("", head, "", *_docstring(about.partition("Attributes:")[0]), "")
        hints = typing.get_type_hints(each)
        said = dict(_items(about.partition("Attributes:\n")[2]))
        for field in msgspec.structs.fields(each):
            words, inner = _json_type(hints[field.name])
            queue += [one for one in inner if one not in queue]
            yield f"- **`{field.name}`** ({words}): {_inline(said[field.name])}"


def _json_type(hint: Any) -> tuple[str, list[Any]]:
    """Return a type in the words of JSON, and the records in it."""
    if hint is msgspec.UnsetType or hint is type(None) or hint is Any:
        return {msgspec.UnsetType: "or absent", Any: "any value"}.get(hint, "null"), []
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f'`"{each}"`' for each in arguments), []
    if not arguments and isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})", [hint]
    parts = [_json_type(each) for each in arguments]
    inner = [one for _, found in parts for one in found]
    match typing.get_origin(hint):
        case None:
            return _JSON[hint.__name__], []
        case kind if kind is list:
            return f"list of {parts[0][0]}", inner
        case kind if kind is dict:
            return f"object of {parts[1][0]} by name", inner
    return " or ".join(words for words, _ in parts).replace(" or or ", " or "), inner


# Docstrings.


@cache
def _documented(source: str, scope: str = "") -> dict[str, str]:
    """Return the docstring below each assignment of a source, or of a class in it, by name."""
    body = ast.parse(textwrap.dedent(source)).body
    inner = [each for each in body if isinstance(each, ast.ClassDef) and each.name == scope]
    body = inner[0].body if inner else body
    found = {}
    for node, after in pairwise(body):
        match node, after:
            case (
                ast.Assign(targets=[target]) | ast.AnnAssign(target=target),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[ast.unparse(target)] = inspect.cleandoc(text)
    return found


def _docstring(
    text: str, types_of: Mapping[str, str] | None = None, used: Container[str] | None = None
) -> Iterator[str]:
    """Yield a docstring in Markdown; its sections as lists, with types that are known.

    Of a class of which a user calls a part, they have that part.
    """
    about, *sections = _SECTION.split(text)
    for part in re.split(r"\n\n(?! )", about.strip()):
        plain, _, code = part.partition("::\n\n")
        yield from (_inline(plain) + (":" if code else ""), "")
        if code:
            yield from ("```python", textwrap.dedent(code).rstrip(), "```", "")
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title in ("Returns", "Yields"):
            yield from (f"{title}: {_inline(body)}", "")
            continue
        if title == "Args" and used and "__init__" not in used:
            continue
        items = [*_items(body)]
        if title == "Attributes" and used:
            items = [item for item in items if item[0] in used]
        yield from ([f"{title.replace('Args', 'Arguments')}:", ""] if items else [])
        for name, meaning in items:
            hint = f" ({types_of[name]})" if types_of and name in types_of else ""
            shown = name if title == "Raises" else f"**`{name}`**"
            yield f"- {shown}{hint}: {_inline(meaning)}"
        yield ""


def _items(body: str) -> Iterator[tuple[str, str]]:
    """Yield the names and meanings of a section of a docstring."""
    parts = _ITEM.split(textwrap.dedent(body).strip())[1:]
    return zip(parts[::2], parts[1::2], strict=True)


def _inline(text: str) -> str:
    """Return a text of a docstring as a line of Markdown."""
    return _ROLE.sub(r"`\1`", " ".join(text.split())).replace("``", "`")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text)
