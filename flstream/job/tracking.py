"""Section of the job file that names a tracker."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from flstream.job.files import CodeName, check_installed
from flstream.job.free_values import FreeArgs
from flstream.job.problems import must_be
from flstream.job.rules import Section

RUN = "global"
"""Name that stands for the whole run in a tracker, beside those of the sites."""


def built_ins() -> Mapping[str, Any]:
    """Return the trackers that come with flstream, by name."""
    # Imported on demand, since the package of trackers is above this one.
    found: Mapping[str, Any] = importlib.import_module("flstream.tracking.registry").BUILT_IN
    return found


def _is_installed(name: str) -> str:
    if needs := built_ins().get(name):
        check_installed(name, needs.module, needs.install)
    return name


class TrackingSection(Section):
    """Where the run's numbers and text go besides its own files."""

    type: Annotated[str, CodeName("Class", built_ins), AfterValidator(_is_installed)] | None = None
    """The tracker: tensorboard, mlflow, or a class of your own beside the job file; null is none.

    In the run directory, tensorboard writes event files, and mlflow a store, `mlflow/mlflow.db`;
    both need the extra `flstream[tracking]`.
    A class is named `file.py:Class` or `module:Class`, and runs in a process of its own.
    """

    args: FreeArgs = Field(default_factory=dict)
    """Keyword arguments of a tracker of your own, as written."""

    @field_validator("args")
    @classmethod
    def _of_a_class(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        # A type that was refused is not in info.data: that mistake is reported already.
        kind = info.data.get("type", "refused:")
        if value and (kind is None or ":" not in kind):
            raise must_be(f"none, as tracking.type is {kind or 'null'}")
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
