"""Reference page of the job file, generated from the sections that define it.

``python -m flstream.job.reference > docs/job.md`` regenerates it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc

from flstream.job.filter_sections import BUILT_IN
from flstream.job.filters import FiltersSection
from flstream.job.job import Job
from flstream.job.key import WORKFLOW, Key, keys_at, keys_of, section_at
from flstream.job.rules import Section
from flstream.job.stage import Stage
from flstream.job.workflow_args import WorkflowArgs
from flstream.job.workflow_code import built_in_args, built_ins

EXAMPLE = """\
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
"""

_HEAD = f"""\
# The job file

Written by `make docs` from the sections in `flstream/job`, where each key has its one definition;
a workflow's own arguments are defined beside it, in `flstream/workflows`.

A job is one file of HOCON: JSON with comments, units, includes and substitutions. Two keys have to
be given, `name` and `rounds`, and so have the number or the names of the clients, and where the
model and the training code are. All else has a default.

```hocon
{EXAMPLE}```

- `a.b = 1` and `a {{ b = 1 }}` are the same.
- Paths start at the folder of the job file.
- Sizes: `2 MiB`, `2M` and `2097152` are the same; `2 MB` is 2,000,000 bytes. Durations: `600 s`,
  `10 minutes`, `500 ms`; a bare number is in seconds.
- `null` stands for no value; the entry of a key says what that means.
- `${{seed}}` takes the value of another key, as it is after all overrides: `--set`, `-n` and `-r`.
  These may use it, too.
- `${{?HOME}}` takes a variable of the environment, if there is one.
- `include required(file("base.conf"))` takes in another file.
- `--set clients.count=4` on the command line overrides the file, and goes through the same checks.

`flstream validate JOB` names every mistake at once, an unknown key among them, and of a sound job
what it would do and need. The `job.conf` in a run directory has every key written out, with its
meaning.
"""


def render_reference() -> str:
    """Return the page, in Markdown."""
    parts = [_HEAD, *_section("", Job)]
    return "\n".join(parts)


def _section(name: str, section: type[Section]) -> Iterator[str]:
    """Yield the page's parts for a section: its keys, then the sections in it."""
    if name:
        yield f"## `{name}`\n\n{cleandoc(section.__doc__ or '')}\n"
    else:
        yield "## At the top\n"
    inner: list[tuple[str, type[Section]]] = []
    for field, info in section.model_fields.items():
        path = f"{name}.{field}".lstrip(".")
        within = Stage if path == "stages" else section_at(info)
        if within is None:
            yield from map(_entry, keys_at(info, tuple(path.split("."))))
        else:
            inner.append((WORKFLOW if within is Stage else path, within))
    for path, each in inner:
        yield from _section(path, each)
    if section is Stage:
        yield from _arguments_of_built_ins()
    if section is FiltersSection:
        yield from _built_in_filters()


def _arguments_of_built_ins() -> Iterator[str]:
    """Yield the parts for each built-in workflow's own arguments."""
    for name in built_ins():
        args = built_in_args(name)
        keys = keys_of(args, (WORKFLOW, "args"))
        if own := [key for key in keys if key.path[2] not in WorkflowArgs.model_fields]:
            yield f"## `{WORKFLOW}.args` of {name}\n"
            yield from map(_entry, own)


def _built_in_filters() -> Iterator[str]:
    """Yield the parts for each built-in filter: what it does, and its keys."""
    for name, section in BUILT_IN.items():
        yield f"## `filters`: {name}\n\n{cleandoc(section.__doc__ or '')}\n"
        yield from map(_entry, keys_of(section, (name,)))


def _entry(key: Key) -> str:
    default = "has to be given" if key.required else f"default `{key.render(key.default)}`"
    return f"### `{key.name}`\nTakes {key.allowed}; {default}.\n\n{key.meaning}\n"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
