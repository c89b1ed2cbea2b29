"""Section of the job file that names a tracker."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from flstream.job.files import Factory
from flstream.job.free_values import FreeArgs
from flstream.job.problems import Problem, did_you_mean, given
from flstream.job.rules import refuse
from flstream.job.section import Section

RUN = "global"
"""Name that stands for the whole run in a tracker, beside those of the sites."""


def built_ins() -> Mapping[str, Any]:
    """Return the trackers that come with flstream, by name."""
    # Imported on demand, since the package of trackers is above this one.
    found: Mapping[str, Any] = importlib.import_module("flstream.tracking.registry").BUILT_IN
    return found


@dataclass(frozen=True)
class TrackerType(Factory):
    """Name of a tracker that comes with flstream, or a class in a file or a module."""

    what: str = "Class"

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return f"{', '.join(built_ins())}, path/to/file.py:Class or module:Class"

    def parse(self, value: Any, folder: Path) -> str:
        """Return a built-in's name, or the class's absolute place; no code is imported."""
        if value in list(built_ins()):
            needs = built_ins()[value]
            if importlib.util.find_spec(needs.module) is None:
                missing = f"given {value}, and there is no module {needs.module}"
                raise refuse(Problem("", missing, "", f"install it: {needs.install}"))
            return str(value)
        if not isinstance(value, str) or ":" not in value:
            raise self.refused(value, did_you_mean(str(value).lower(), built_ins()))
        return super().parse(value, folder)


class TrackingSection(Section):
    """Where the run's numbers and text go besides its own files."""

    type: Annotated[str | None, TrackerType()] = None
    """The tracker: tensorboard, mlflow, or a class of your own beside the job file; null is none.

    In the run directory, tensorboard writes event files, and mlflow a store, `mlflow/mlflow.db`;
    both need the extra `flstream[tracking]`.
    A class is named `file.py:Class` or `module:Class`, and runs in a process of its own.
    """

    args: Annotated[dict[str, Any], FreeArgs()] = Field(default_factory=dict)
    """Keyword arguments of a tracker of your own, as written."""

    @field_validator("args")
    @classmethod
    def _of_a_class(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        # A type that was refused is not in info.data: that mistake is reported already.
        kind = info.data.get("type", "refused:")
        if value and (kind is None or ":" not in kind):
            allowed = f"none, as tracking.type is {kind or 'null'}"
            raise refuse(Problem("", given(value), allowed))
        return value

    @property
    def name(self) -> str:
        """Name of the tracker for messages: `tensorboard`, or `mine.py:Tracker`."""
        where, colon, name = (self.type or "").rpartition(":")
        return f"{Path(where).name}{colon}{name}"

    @property
    def place(self) -> str | None:
        """Place of the tracker's class: `package.module:name` or `/abs/path.py:name`."""
        if self.type is None:
            return None
        found = built_ins().get(self.type)
        return self.type if found is None else found.place
