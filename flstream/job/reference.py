"""Reference page of the job file, generated from the models that define it.

``python -m flstream.job.reference > docs/job.md`` writes it anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from flstream.job.keys import Key, Schema, job_schema, section_at
from flstream.job.values import render_value

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
- `include required(file("base.conf"))` takes in another file, which has to be there.
- `a += 3` appends to the list that `a` is above it. A dotted key has no quotes: write
  `clients.args {{ "a.b" {{ lr = 0.1 }} }}`.
- `--set clients.count=4` on the command line overrides the file, and goes through the same checks.
- What has a type has its arguments in `args`: `{{ type = topk, args {{ fraction = 0.05 }} }}`. The
  name of the type alone stands for one without arguments.

`flstream validate JOB` names all mistakes of single keys at once, an unknown key among them, then
those between keys, and of a sound job what it would do and need; `flstream validate --schema`
prints the JSON schema, for editors. The `job.conf` in a run directory has every key written out,
with its meaning. `make docs` writes this page from `flstream/job`, where each key has its one
definition; a workflow's own arguments are defined beside it, in `flstream/workflows`.
"""


def render_reference() -> str:
    """Return the page, in Markdown."""
    lines = [_HEAD, "## At the top", "", *_keys(job_schema(), ""), *_sections(job_schema(), "")]
    return "\n".join(lines) + "\n"


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
        elif "allOf" in field.get("items", {}) and name == "up":
            yield from _kinds(field["items"], "", {})


def _kinds(schema: Schema, key: str, common: Schema) -> Iterator[str]:
    """Yield the lines of each built-in type's own arguments.

    The key is the dotted name of the section; it is empty for an item of a list.
    """
    for case in schema.get("allOf", ()):
        kind = case["if"]["properties"]["type"]["const"]
        args = case["then"]["properties"]["args"]
        lines = [*_keys(args, f"{key or kind}.args.", common)]
        if lines or not key:
            meaning = "" if key else " ".join(args["description"].split())
            yield from ("", f"With `type = {kind}`: {meaning}".rstrip(), "", *lines)


def _keys(schema: Schema, above: str, without: Schema | None = None) -> Iterator[str]:
    """Yield a line for each key of a section, but for sections in it."""
    for name, field in schema["properties"].items():
        if name not in (without or {}) and section_at(schema, name) is None:
            key = Key(f"{above}{name}", field, name in schema.get("required", ()))
            default = "required" if key.required else f"default `{render_value(key.default)}`"
            yield f"- **`{key.name}`** ({key.allowed}; {default}): {' '.join(key.meaning.split())}"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
