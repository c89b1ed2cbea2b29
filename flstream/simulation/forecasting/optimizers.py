"""What a training keeps in memory beside the weights, where its code names the optimizer.

The code is parsed, not run: an optimizer of torch that is called by its name, or a trainer of
Hugging Face with what its arguments say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flstream.job.imports import own_files

# Numbers that an optimizer of torch keeps for each weight that is trained.
_TORCH: Mapping[str, float] = {
    "Adadelta": 2,
    "Adafactor": 0,
    "Adagrad": 1,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "ASGD": 1,
    "Muon": 1,
    "NAdam": 2,
    "RAdam": 2,
    "RMSprop": 1,
    "Rprop": 2,
    "SGD": 0,
    "SparseAdam": 2,
}
# Arguments for which they keep one number more. SGD's momentum may also come by its place.
_MORE = {"SGD": ("momentum",), "RMSprop": ("momentum", "centered")}
_ANY_MORE = ("amsgrad",)
_MOMENTUM_PLACE = 2
# The same by what is in the name that Hugging Face has for it; 8 bits are a quarter of 32.
_HUGGING_FACE: Mapping[str, float] = {
    "adafactor": 0,
    "adagrad": 1,
    "adam": 2,
    "lion": 1,
    "rmsprop": 1,
    "sgd": 0,
}
_TRAINERS = ("transformers", "trl")
_DEFAULT_OPTIM = "adamw_torch"


class OptimizerUse(NamedTuple):
    """An optimizer that training code uses.

    Attributes:
        name: Its name, as in ``torch.optim`` or as Hugging Face calls it.
        numbers: Numbers that it keeps for each weight that is trained, of the weight's size.
    """

    name: str
    numbers: float

    def training_bytes(self, weights: int) -> int:
        """Return the memory of gradients and of what the optimizer keeps, in bytes.

        Args:
            weights: Size of the weights that are trained, in bytes.
        """
        return int(weights * (1 + self.numbers))


def optimizer_of(source: Path) -> OptimizerUse | None:
    """Return the optimizer of training code that keeps the most; None if none is recognised.

    Args:
        source: Path of the training code's file; files beside it that it imports count, too.
    """
    found: list[OptimizerUse] = []
    for path in own_files(source):
        with suppress(OSError, SyntaxError, ValueError):
            found += _uses(ast.parse(path.read_bytes()))
    return max(found, key=lambda use: use.numbers, default=None)


def _uses(tree: ast.Module) -> Iterator[OptimizerUse]:
    names = dict(_imported(tree))
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    called = [(_full_name(each.func, names), each) for each in calls]
    optims = [_optim(call) for name, call in called if name.endswith(("Arguments", "Config"))]
    for name, call in called:
        package, _, last = name.rpartition(".")
        if package.startswith("torch.optim") and last in _TORCH:
            more = sum(_is_set(call, key) for key in (*_MORE.get(last, ()), *_ANY_MORE))
            if last == "SGD" and not more and len(call.args) > _MOMENTUM_PLACE:
                more = not _is_zero(call.args[_MOMENTUM_PLACE])
            yield OptimizerUse(last, _TORCH[last] + more)
        elif package.split(".")[0] in _TRAINERS and last.endswith("Trainer"):
            yield _of_trainer(next(filter(None, optims), _DEFAULT_OPTIM))


def _of_trainer(optim: str) -> OptimizerUse:
    known = (numbers for name, numbers in _HUGGING_FACE.items() if name in optim)
    numbers = next(known, _HUGGING_FACE["adam"])
    return OptimizerUse(optim, numbers / 4 if "8bit" in optim else numbers)


def _optim(call: ast.Call) -> str:
    """Return the name that an argument ``optim`` has; empty without one."""
    for each in call.keywords:
        match each:
            case ast.keyword(arg="optim", value=ast.Constant(value=str(text))):
                return text
    return ""


def _is_set(call: ast.Call, key: str) -> bool:
    """Return whether an argument is there, and no zero or False."""
    return any(each.arg == key and not _is_zero(each.value) for each in call.keywords)


def _is_zero(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names by which code refers to modules and what is in them, with the full ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, whole
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _full_name(function: ast.expr, names: Mapping[str, str]) -> str:
    first, dot, rest = ast.unparse(function).partition(".")
    return f"{names.get(first, first)}{dot}{rest}"
