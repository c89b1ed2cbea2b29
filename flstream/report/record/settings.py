"""The settings of a run, read off the job file that it wrote."""

from __future__ import annotations

from typing import NamedTuple

from flstream.job import JobError
from flstream.job.hocon import read_hocon
from flstream.job.keys import flat, keys_in
from flstream.job.values import render_value
from flstream.runs.run_directory import RunDirectory


class Setting(NamedTuple):
    """A key of the job file.

    Attributes:
        key: as ``clients.count``.
        value: as it is written in a job file.
        meaning: what the key does.
        is_default: whether a job file need not say it.
    """

    key: str
    value: str
    meaning: str
    is_default: bool


def read_settings(run: RunDirectory) -> list[Setting]:
    """Every setting that a run's job file has, in the order of the keys; none without the file.

    The code, the data and the initial model that the file names are not looked at: they may be gone
    by now.

    Raises:
        JobError: the file is damaged.
    """
    if not run.job_file.exists():
        return []
    hocon = read_hocon(run.job_file)
    if hocon.problems:
        raise JobError(run.job_file, hocon.problems)
    settings, keys = [], keys_in(hocon.values)
    for name, value in flat(hocon.values):
        key = keys.get(name)
        is_default = key is not None and not key.required and value == key.default
        meaning = "An argument of the workflow, as written." if key is None else key.meaning
        text = render_value(value)
        settings.append(Setting(name, text, meaning.partition("\n")[0], is_default))
    return settings
