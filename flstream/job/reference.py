"""Reference page of the job file, generated from the models that define it.

``python -m flstream.job.reference > docs/job.md`` writes it anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc

from flstream.job.codecs import CodecSection
from flstream.job.fields import Section
from flstream.job.filters import FilterSection
from flstream.job.job import Job
from flstream.job.keys import WORKFLOW, Key, section_at
from flstream.job.sections import ServerOptimizerSection
from flstream.job.stage import Stage
from flstream.job.typed import TypedSection
from flstream.job.values import render_value
from flstream.job.workflow_args import COMMON_ARGS, WorkflowArgs

AnyTyped = type[TypedSection]

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

A job file has to give `name`, `rounds`, `clients.count` (or `clients.names`), `model.factory` (or
`model.initial`) and `train.script` (or `train.learner`); all other keys have defaults. It is HOCON:
JSON with comments, units, includes and substitutions.

```hocon
{EXAMPLE}```

- `a.b = 1` and `a {{ b = 1 }}` are the same. Paths start at the folder of the job file.
- Sizes: `2 MiB`, `2M` and `2097152` are the same; `2 MB` is 2,000,000 bytes. Durations: `600 s`,
  `10 minutes`, `500 ms`; a bare number is in seconds.
- `null` stands for no value; the entry of a key says what that means.
- `${{seed}}` takes the value of another key, as it is after all overrides: `--set`, `-n` and `-r`.
  These may use it, too. `${{?HOME}}` takes a variable of the environment, if there is one.
- `include required(file("base.conf"))` takes in another file.
- `--set clients.count=4` on the command line overrides the file, and goes through the same checks.
- What has a type has its arguments in `args`: `{{ type = topk, args {{ fraction = 0.05 }} }}`. The
  name of the type alone stands for one without arguments.

`flstream validate JOB` names every mistake at once, an unknown key among them, and of a sound job
what it would do and need; `flstream validate --schema` prints the JSON schema, for editors. The
`job.conf` in a run directory has every key written out, with its meaning. `make docs` writes this
page from `flstream/job`, where each key has its one definition; a workflow's own arguments are
defined beside it, in `flstream/workflows`.
"""


def render_reference() -> str:
    """Return the page, in Markdown."""
    return "\n".join([_HEAD, "## At the top", "", *_keys(Job, ""), *_sections(Job, "")]) + "\n"


def _sections(section: type[Section], above: str) -> Iterator[str]:
    """Yield the lines of the sections in a section."""
    for name, field in section.model_fields.items():
        name = field.alias or name
        inner = section_at(section, name, {})
        if inner is None or name == "args":
            continue
        dotted = f"{above}{name}"
        yield from ("", f"## `{dotted}`", "", *cleandoc(inner.__doc__ or "").splitlines(), "")
        yield from _keys(inner, f"{dotted}.")
        if inner is Stage:
            yield from _keys(WorkflowArgs, f"{WORKFLOW}.args.")
            yield from _kinds(Stage, WORKFLOW, COMMON_ARGS)
        if inner is ServerOptimizerSection:
            yield from _kinds(ServerOptimizerSection, dotted)
        yield from _sections(inner, f"{dotted}.")
        if dotted == "filters":
            yield from _kinds(FilterSection)
        if dotted == "streaming.codecs":
            yield from _kinds(CodecSection)


def _kinds(section: AnyTyped, key: str = "", without: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of the arguments of each built-in type of a section, or of items of a list.

    Args:
        section: The section.
        key: Dotted name of the section; empty for an item of a list.
        without: Arguments that are described already.
    """
    for name, args in section.built_in().items():
        lines = [*_keys(args, f"{key or name}.args.", without)]
        if lines or not key:
            meaning = "" if key else " ".join(cleandoc(args.__doc__ or "").split())
            yield from ("", f"With `type = {name}`: {meaning}".rstrip(), "", *lines)


def _keys(section: type[Section], above: str, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield a line for each key of a section that is no section itself."""
    for name, field in section.model_fields.items():
        name = field.alias or name
        if name in without or section_at(section, name, {}) is not None:
            continue
        key = Key(f"{above}{name}", field)
        default = "required" if key.required else f"default `{render_value(key.default)}`"
        meaning = " ".join(key.meaning.split())
        yield f"- **`{key.name}`** ({key.allowed}; {default}): {meaning}"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
