"""Every key of the job file, read off the sections that define them."""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from flstream.job.problems import ask_for
from flstream.job.rules import Rule
from flstream.job.sections import Job, Section


@dataclass(frozen=True)
class Key:
    """One key of the job file, as its definition describes it."""

    path: tuple[str, ...]
    """`("clients", "count")`."""
    rule: Rule
    """What the key accepts; `rule.allowed` says it in words."""
    required: bool
    default: Any
    """The value of a key that is left out; None for a required one."""
    meaning: str
    """What the key does, with its unit; the first line is enough for a reader in a hurry."""

    @property
    def name(self) -> str:
        """The key as it is written: `clients.count`."""
        return ".".join(self.path)

    def value_in(self, job: Job) -> Any:
        """What a job has for this key."""
        value: Any = job
        for name in self.path:
            value = getattr(value, name)
        return value

    def render(self, value: Any) -> str:
        """A value of this key as it is written in a job file."""
        return "null" if value is None else self.rule.render(value)


@cache
def job_keys() -> dict[str, Key]:
    """Return every key of the job file by its dotted name, in the order of definition."""
    return {key.name: key for key in _keys((), Job)}


@cache
def section_names() -> tuple[str, ...]:
    """Return the dotted name of every section: `clients`, ..., `workflow.args`."""
    paths = (key.path[:end] for key in job_keys().values() for end in range(1, len(key.path)))
    return tuple(dict.fromkeys(".".join(path) for path in paths))


def _keys(above: tuple[str, ...], section: type[Section]) -> list[Key]:
    found: list[Key] = []
    for name, field in section.model_fields.items():
        path = (*above, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found += _keys(path, field.annotation)
            continue
        [rule] = [each for each in field.metadata if isinstance(each, Rule)]
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        meaning = field.description or ""
        found.append(Key(path, rule, field.is_required(), default, meaning))
    return found


def nearest_keys(unknown: str) -> tuple[str, ...]:
    """Return the keys or sections that an unknown key was most likely meant to be.

    In order: the same name in another section, a longer name that contains it anywhere
    (`chunk_size`), a near name in the same section, a near name anywhere.
    """
    section, _, name = unknown.rpartition(".")
    known = [*job_keys(), *section_names()]
    last_part = {key: key.rpartition(".")[2] for key in known}

    if same := tuple(key for key in known if last_part[key] == name):
        return same
    siblings = {last_part[key]: key for key in known if key.rpartition(".")[0] == section}
    if longer := tuple(key for key in known if len(name) > 3 and name in last_part[key]):
        return longer
    if near := get_close_matches(name, siblings, n=1, cutoff=0.6):
        return (siblings[near[0]],)
    near = get_close_matches(name, last_part.values(), n=1, cutoff=0.7)
    return tuple(key for key in known if last_part[key] in near)


def question_about(unknown: str) -> str:
    """Ask whether one of the nearest keys was meant; empty where nothing is near."""
    return ask_for(nearest_keys(unknown))
