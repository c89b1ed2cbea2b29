"""A resolved job as a job file: every key written out, with its meaning above it."""

from itertools import groupby

from flstream.job.keys import Key, job_keys
from flstream.job.sections import Job


def render_job(job: Job) -> str:
    """Return HOCON text that loads, from any folder, as an equal job."""
    keys = job_keys().values()
    return "\n".join(_section(job, list(keys), depth=0)) + "\n"


def _section(job: Job, keys: list[Key], depth: int) -> list[str]:
    """Return the lines of a section: its own keys, then the sections in it."""
    indent = "  " * depth
    lines: list[str] = []
    for name, group in groupby(keys, key=lambda key: key.path[depth]):
        inside = list(group)
        if len(inside[0].path) > depth + 1:
            lines += ["", f"{indent}{name} {{", *_section(job, inside, depth + 1), f"{indent}}}"]
        else:
            [key] = inside
            lines += [
                f"{indent}# {key.meaning.partition(chr(10))[0]}",
                f"{indent}{name} = {key.render(key.value_in(job))}",
            ]
    return lines
