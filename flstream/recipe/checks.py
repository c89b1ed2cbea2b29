"""Checks of the types of arguments, and notices on what needs no counterpart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call

from flstream.errors import UsageError
from flstream.report.console import make_console

Parameters = ParamSpec("Parameters")
ReturnT = TypeVar("ReturnT")
ClassT = TypeVar("ClassT")


def checked(function: Callable[Parameters, ReturnT]) -> Callable[Parameters, ReturnT]:
    """Have a function refuse arguments that cannot be converted to the types of its annotations.

    It then raises :class:`~flstream.errors.UsageError`, which names each of them.
    """
    check = validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    validated = check(function)
    name = function.__qualname__.removesuffix(".__init__")
    names = list(signature(function).parameters)

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ReturnT:
        try:
            return validated(*args, **kwargs)
        except ValidationError as error:
            raise UsageError(f"{name}: {'; '.join(_mistakes(error, names))}") from None

    return call


def checked_arguments(made: type[ClassT]) -> type[ClassT]:
    """Have a class refuse arguments that are not of the types of its fields, as `checked` does."""
    made.__init__ = checked(made.__init__)  # type: ignore[method-assign]
    return made


@cache
def notice(text: str) -> None:
    """Print a line on stdout, unless this process has printed it before."""
    make_console().print(f"flstream: {text}", style="dim", soft_wrap=True)


def _mistakes(error: ValidationError, names: Sequence[str]) -> list[str]:
    """Return a clause for each argument that is wrong.

    Args:
        error: The mistakes.
        names: Names of the arguments, in order; those that were given by place are counted.
    """
    found: dict[str, str] = {}
    for each in error.errors():
        place = each["loc"][0]
        where = str(names[place] if isinstance(place, int) and place < len(names) else place)
        given = repr(each["input"])
        shown = given if len(given) <= 60 else f"a {type(each['input']).__name__}"
        found.setdefault(where, f"{where} is {shown}: {each['msg']}")
    return list(found.values())
