"""The walls: imports between the rooms point downward, and torch is imported where it is used."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import flstream

ROOT = Path(flstream.__file__).parent
# From the top down. A room may import those that come after it.
ROOMS = (
    "cli",
    "compat",
    "recipe",
    "sweep",
    "report",
    "bench",
    "inspection",
    "workflows",
    "simulation",
    "server",
    "engines",
    "worker",
    "tracking",
    "runs",
    "client",
    "filters",
    "aggregation",
    "codecs",
    "streaming",
    "transport",
    "model",
    "job",
    "telemetry",
)
# Anyone may import these, and they import no room.
LEAVES = ("debugging", "errors", "text", "units")
# They start the command line, or import the Python face once it is used: they are above all rooms.
ABOVE = ("__init__.py", "__main__.py")

MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Every module that is imported anywhere in a file, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            origin = ".".join((*parts, node.module or "")) if node.level else node.module or ""
            for alias in node.names:
                yield node.lineno, f"{origin.strip('.')}.{alias.name}"


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported, but for those for type checkers."""
    yield node
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in node.orelse if is_for_types else ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from at_import(child)


@cache
def parse(module: str) -> tuple[ast.Module, str]:
    package = ".".join(("flstream", *Path(module).parent.parts))
    return ast.parse((ROOT / module).read_text()), package


def room_of(name: str) -> str | None:
    """The room or leaf that a module's full name lies in; None outside of flstream."""
    first, _, rest = name.partition(".")
    return (rest.partition(".")[0] or None) if first == "flstream" else None


def test_imports_between_rooms_point_downward():
    wrong = []
    for module in [each for each in MODULES if each not in ABOVE]:
        here = Path(module).parts[0].removesuffix(".py")
        for line, name in imported(*parse(module)):
            there = room_of(name)
            if there is None or there in (*LEAVES, here, "__version__"):
                continue
            assert there in ROOMS, f"{module}:{line} imports {name}, which is in no room"
            if here not in ROOMS or ROOMS.index(there) < ROOMS.index(here):
                wrong.append(f"{module}:{line} imports {name}")
    assert wrong == []


def test_the_server_knows_nothing_of_what_training_code_imports():
    server = [each for each in MODULES if each.startswith("server/")]
    names = {module: [name for _, name in imported(*parse(module))] for module in server}
    assert [each for each in server if "client" in map(room_of, names[each])] == []


def imports_torch(module: str) -> bool:
    tree, package = parse(module)
    names = [
        name
        for node in at_import(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for _, name in imported(node, package)
    ]
    return any(name.split(".")[0] == "torch" or name.endswith(".torch") for name in names)


def test_torch_is_imported_only_where_it_is_used():
    # What extends its classes is imported within functions, as it is.
    extensions = {"model/file_memory.py", "simulation/module_init.py"}
    names = {f"flstream.{path.removesuffix('.py').replace('/', '.')}" for path in extensions}
    early = {
        name.rpartition(".")[0]
        for module in set(MODULES) - extensions
        for node in at_import(parse(module)[0])
        if isinstance(node, ast.Import | ast.ImportFrom)
        for _, name in imported(node, parse(module)[1])
    }
    assert {each for each in MODULES if imports_torch(each)} == extensions
    assert early & names == set()


def test_every_folder_is_a_room():
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(ROOMS)


RETIRED_WORDS = (
    "companion|conversation|crew|gathering|heard|hired|hiring|ledger|outbox|recruit|said|slot|spool"
    "|told|zone"
)


# Names of other frameworks in the room for them.
OF_OTHERS = frozenset({"AggregationError", "Result"})


def test_no_class_name_stands_for_two_things():
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(parse(module)[0]):
            if isinstance(node, ast.ClassDef) and node.name not in OF_OTHERS:
                places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def retired(name: str) -> bool:
    """Whether a name has a retired word: SpooledUpdate, spooled_update and spooledUpdate do."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.search(rf"(?:^|_)(?:{RETIRED_WORDS})(?:s|ed|ing)?(?:_|$)", words) is not None


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module binds, with the line."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield node.lineno, name
            case ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) if name != "__slots__":
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def test_names_are_the_words_of_the_field():
    names = [(module, "file", Path(module).stem) for module in MODULES]
    names += [
        (module, f"line {line}", name)
        for module in MODULES
        for line, name in bound_names(parse(module)[0])
    ]
    assert [each for each in names if retired(each[2])] == []
