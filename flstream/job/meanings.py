"""Meanings of the keys of a job file: the texts under the fields of this package's sections.

pydantic can read them, too, but does so whenever a class is defined: a tenth of every start.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise


@cache
def meanings_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the texts under the fields of a module's classes, by class and field."""
    return {
        node.name: {
            field.target.id: inspect.cleandoc(str(text.value.value))
            for field, text in pairwise(node.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
        if isinstance(node, ast.ClassDef)
    }
