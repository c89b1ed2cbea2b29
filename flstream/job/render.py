"""Rendering of a resolved job as a job file: each key with its meaning as a comment."""

from collections.abc import Sequence
from itertools import groupby

from flstream.job.job import Job
from flstream.job.key import WORKFLOW, Key, split_index
from flstream.job.keys import job_keys


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
