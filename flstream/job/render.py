"""Rendering of jobs as job files: resolved ones with every key, and given values as they are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from flstream.job.job import Job
from flstream.job.key import WORKFLOW, Key, split_index
from flstream.job.keys import job_keys
from flstream.job.values import render_value

# HOCON reads a bare `include` as its own word, and splits a bare key at its dots.
_BARE = re.compile(r"(?!include$)[A-Za-z_][A-Za-z0-9_-]*")


def render_job(job: Job) -> str:
    """Return HOCON text that loads, from any folder, as an equal job."""
    keys = job_keys(job).values()
    return "\n".join(_section(job, list(keys), depth=0)) + "\n"


def _section(job: Job, keys: Sequence[Key], depth: int) -> list[str]:
    """Return the lines of a section: its own keys, then the sections in it."""
    indent = "  " * depth
    lines: list[str] = []
    for name, group in groupby(keys, key=lambda key: split_index(key.path[depth])[0]):
        inside = list(group)
        if name == WORKFLOW and depth == 0 and len(job.stages) > 1:
            lines += ["", f"{name} = [", *_list(job, inside), "]"]
        elif len(inside[0].path) > depth + 1:
            lines += ["", f"{indent}{name} {{", *_section(job, inside, depth + 1), f"{indent}}}"]
        else:
            [key] = inside
            lines += [
                f"{indent}# {key.meaning.partition(chr(10))[0]}",
                f"{indent}{name} = {key.render(key.value_in(job))}",
            ]
    return lines


def _list(job: Job, keys: Sequence[Key]) -> list[str]:
    """Return the lines of a list of workflows, whose keys come one workflow after another."""
    lines: list[str] = []
    for _, group in groupby(keys, key=lambda key: key.path[0]):
        lines += [*(["  },"] if lines else []), "  {", *_indented(_section(job, list(group), 1))]
    return [*lines, "  }"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def render_values(values: Mapping[str, Any]) -> str:
    """Return HOCON text that reads as these plain values, with a block for each section.

    Args:
        values: Values by key; a section is a mapping. They are not checked.
    """
    return "\n".join(_lines(values, depth=0)) + "\n"


def _lines(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, value in values.items():
        key = name if _BARE.fullmatch(name) else render_value(name)
        if isinstance(value, Mapping) and value:
            yield from ([""] if depth == 0 else [])
            yield f"{indent}{key} {{"
            yield from _lines(value, depth + 1)
            yield f"{indent}}}"
        else:
            yield f"{indent}{key} = {render_value(value)}"
