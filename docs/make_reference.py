"""Writes docs/reference/ from the code: ``make docs``.

The text of each page stands in the code: keys of the job file with their sections, commands and
options with their help, functions and classes with their docstrings. Only what stands above the
first heading of a page is written by hand, in the page.
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
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec
from typer.main import get_command

from flstream.cli import options
from flstream.cli.app import app
from flstream.job.keys import Key, Schema, job_schema, section_at
from flstream.job.values import render_value
from flstream.recipe.arguments import RecipeArguments
from flstream.runs.summary import Summary
from flstream.server.run import Run
from flstream.streaming.api import DownloadOptions
from flstream.streaming.refs import OfferOptions

FOLDER = Path(__file__).parent / "reference"
# Of these classes, flstream itself calls most methods; a user calls and reads these.
USED: Mapping[str, tuple[str, ...]] = {
    "Channel": ("__init__", "close"),
    "DownloadService": ("__init__", "offer", "attach", "detach", "close"),
    "FoldRule": ("weights", "normalise", "scale", "base"),
    "FedJob": (
        *("__init__", "name", "to", "to_server", "to_clients", "configure"),
        *("set_per_site_config", "export_job", "simulator_run"),
    ),
    "JobError": ("problems",),
    "Layout": ("of", "tensors", "aliases", "nbytes", "names", "find", "subset", "overlapping"),
    "Receiver": ("__init__", "peer", "close"),
    "Ref": ("id", "token", "deliveries", "outcome", "wait", "abort"),
    "Run": tuple(name for name in vars(Run) if name[0] != "_"),
    "RunFailedError": ("run",),
    "Sampler": ("sample",),
    "ServerStep": ("moments", "counts_alike", "initial", "step"),
    "SweepResult": ("directory", "settings", "best", "failures", "to_pandas"),
    "TensorGroup": ("name", "base", "log"),
    "Updates": ("sites", "failures"),
    "WorkflowArgs": ("evaluate", "evaluate_every", "key_metric", "key_metric_mode"),
}
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n", flags=re.MULTILINE)
_ITEM = re.compile(r"^\*{0,2}(\w[\w., ]*): ", flags=re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_JSON: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "true or false",
    Any: "any value",
    types.NoneType: "null",
    msgspec.UnsetType: "or absent",
}


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    trainers = (_module(f"flstream.client.{name}", ["patch"]) for name in ("hf", "lightning"))
    client = (_module("flstream.client"), _module("flstream.client.tracking"), *trainers)
    lines = {
        "job": _job_file(),
        "command-line": _commands(),
        "client": chain(*client),
        "recipe": _module("flstream.recipe", records=[RecipeArguments]),
        "streaming": _module("flstream.streaming", records=[OfferOptions, DownloadOptions]),
        "summary": _records(Summary),
        "workflows": _module("flstream.workflows"),
    }
    return {name: _page(name, each) for name, each in lines.items()}


def _page(name: str, lines: Iterable[str]) -> str:
    head = (FOLDER / f"{name}.md").read_text().partition("\n## ")[0]
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
            if "properties" in (named := inner.get("additionalProperties") or {}):
                yield from ("", *_keys(named, f"{key}.NAME."))
        elif "allOf" in field.get("items", {}) and name == "up":
            yield from _kinds(field["items"], "", {})


def _kinds(schema: Schema, key: str, common: Schema) -> Iterator[str]:
    """Yield the lines of each built-in type's own arguments.

    The key is the dotted name of the section; it is empty for an item of a list.
    """
    for case in schema.get("allOf", ()):
        [(type_key, named)] = case["if"]["properties"].items()
        kind = named["const"]
        args = case["then"]["properties"]["args"]
        lines = [*_keys(args, f"{key or kind}.args.", common)]
        if lines or not key:
            meaning = "" if key else " ".join(args["description"].split())
            yield from ("", f"With `{type_key} = {kind}`: {meaning}".rstrip(), "", *lines)


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
    for name, about in _documented(options).items():
        yield f"- `{getattr(options, name)}`: {_inline(about)}"
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
    names = names or [
        each
        for each in getattr(module, "__all__", None) or sorted(vars(module))
        if each[0] != "_" and not inspect.ismodule(getattr(module, each))
    ]
    yield from ("", f"## `{name}`", "", *_docstring(inspect.getdoc(module) or ""))
    for each in names:
        yield from _entry(each, getattr(module, each), names)
    for record in records:
        yield from _entry(record.__name__, record, names)


def _entry(name: str, value: Any, names: Container[str]) -> Iterator[str]:
    """Yield the lines of a name: its heading, signature and docstring."""
    yield from ("", f"### `{name}`", "")
    first = getattr(value, "__name__", name)
    if first != name and first in names:
        yield f"Another name of `{first}`."
    elif inspect.isclass(value):
        yield from (_enum if issubclass(value, Enum) else _class)(name, value)
    elif callable(value):
        yield from _function(name, value)
    else:
        yield from _docstring(inspect.getdoc(type(value)) or "")


def _enum(name: str, value: Any) -> Iterator[str]:
    about = _documented(importlib.import_module(value.__module__)).get(name)
    yield from _docstring(about or inspect.getdoc(value) or "")
    said = {} if about else _documented(value)
    for each in value:
        yield f"- `{each.name}` (`{each.value!r}`){_after_colon(said.get(each.name, ''))}"


def _class(name: str, value: type) -> Iterator[str]:
    about, record, used = inspect.cleandoc(value.__doc__ or ""), _fields(value), USED.get(name)
    if "__init__" in vars(value) and not record and "__init__" in (used or ["__init__"]):
        yield from _signature(name, vars(value)["__init__"])
    yield from _docstring(about, {each: label for each, (label, _) in record.items()}, used)
    bases = [base.__name__ for base in value.__bases__ if base.__module__.startswith("flstream")]
    yield from ("", *(f"Base class: `{base}`." for base in bases if base[0] != "_"), "")
    for each, (label, meaning) in record.items():
        if f"\n    {each}: " not in about:
            yield f"- **`{each}`** ({label}){_after_colon(meaning)}"
    for each, member in vars(value).items():
        method = inspect.unwrap(getattr(member, "fget", None) or getattr(value, each))
        if each[0] != "_" and each in (used or [each]) and callable(method) and method.__doc__:
            yield from ("", f"#### `{name}.{each}`", "")
            if method.__name__ != each:
                yield f"Another name of `{method.__name__}`."
            elif isinstance(member, property):
                yield from _docstring(inspect.getdoc(method) or "")
            else:
                yield from _function(each, method)


def _function(name: str, function: Any) -> Iterator[str]:
    """Yield a function's signature and docstring."""
    yield from (*_signature(name, function), *_docstring(inspect.getdoc(function) or ""))


def _signature(name: str, function: Any) -> Iterator[str]:
    """Yield a function's signature as its source has it, but for the function's own self."""
    node = _tree(function)
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
    about = _documented(record)
    return {
        name: (_label(node.annotation, node.value), about.get(name, ""))
        for node in _tree(record).body
        if isinstance(node, ast.AnnAssign) and (name := ast.unparse(node.target))[0] != "_"
    }


def _label(hint: ast.expr, default: ast.expr | None) -> str:
    """Return a field's type and default in words."""
    words = [f"`{ast.unparse(hint)}`"]
    match hint:
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([plain, ast.Constant(str(key))])):
            words = [f"`{ast.unparse(plain)}`", f"sets `{key}`"]
    if isinstance(default, ast.Call):
        words += [f"default `{ast.unparse(each.value)}()`" for each in default.keywords[:1]]
    elif default is not None:
        words.append(f"default `{ast.unparse(default)}`")
    return "; ".join(words)


# summary.json.


def _records(record: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the fields of a record in JSON, and then those of the records that it has."""
    records = [record]
    for each in records:
        about, _, fields = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")
        head = f"## `{each.__name__}`" if each is not record else "## At the top"
        yield from ("", head, "", *_docstring(about), "")
        said = _items(fields)
        for name, hint in typing.get_type_hints(each).items():
            yield f"- **`{name}`** ({_json_type(hint, records)}): {_inline(said[name])}"


def _json_type(hint: Any, records: list[Any]) -> str:
    """Return a type in the words of JSON, and add the records in it to those that are known."""
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind is typing.Literal:
        return ", ".join(f'`"{each}"`' for each in arguments)
    if kind is None:
        records += [hint] if hint not in (*_JSON, *records) else []
        return _JSON.get(hint) or f"[{hint.__name__}](#{hint.__name__.lower()})"
    words = [_json_type(each, records) for each in arguments]
    if kind is list:
        return f"list of {words[0]}"
    if kind is dict:
        return f"object of {words[1]} by name"
    return " or ".join(words).replace(" or or ", " or ")


# Docstrings.


def _tree(thing: Any) -> Any:
    """Return the syntax tree of a module, a class or a function."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing))))
    return tree if inspect.ismodule(thing) else tree.body[0]


def _documented(thing: Any) -> dict[str, str]:
    """Return the docstring below each assignment of a module or class, by name."""
    found = {}
    for node, after in pairwise(_tree(thing).body):
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
        if title == "Args" and "__init__" not in (used or ["__init__"]):
            continue
        items = _items(body)
        if title == "Attributes" and used:
            items = {name: meaning for name, meaning in items.items() if name in used}
        yield from ([f"{title.replace('Args', 'Arguments')}:", ""] if items else [])
        for name, meaning in items.items():
            hint = f" ({types_of[name]})" if types_of and name in types_of else ""
            shown = name if title == "Raises" else f"**`{name}`**"
            yield f"- {shown}{hint}: {_inline(meaning)}"
        yield ""


def _items(body: str) -> dict[str, str]:
    """Return the meanings in a section of a docstring by name."""
    parts = _ITEM.split(textwrap.dedent(body).strip())[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _after_colon(text: str) -> str:
    """Return what follows a name's type: a text, if there is one."""
    return f": {_inline(text)}" if text else ""


def _inline(text: str) -> str:
    """Return a text of a docstring as a line of Markdown."""
    return _ROLE.sub(r"`\1`", " ".join(text.split())).replace("``", "`")


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text)
