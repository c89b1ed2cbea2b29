"""Section of the job file that names a tracker."""

import importlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from flstream.job.fields import FreeArgs, Section
from flstream.job.files import code_name, needs
from flstream.job.typed import short_name

RUN = "global"
"""Name that stands for the whole run in a tracker, beside those of the sites."""


def built_ins() -> Mapping[str, str]:
    """Return the places of the trackers that come with flstream, by name."""
    # Imported on demand, since the package of trackers is above this one.
    registry: Mapping[str, str] = importlib.import_module("flstream.tracking.registry").BUILT_IN
    return registry


def _needed(name: str) -> tuple[str, str] | None:
    return (name, "pip install 'flstream[tracking]'") if name in built_ins() else None


class TrackingSection(Section):
    """Tracker of the run's numbers and text, beside its own files."""

    type: Annotated[str, *code_name("Class", built_ins), needs(_needed)] | None = None
    """The tracker: tensorboard, mlflow, or a class of your own beside the job file; null is none.

    In the run directory, tensorboard writes event files, and mlflow a store, `mlflow/mlflow.db`;
    both need the extra `flstream[tracking]`.
    A class is named `file.py:Class` or `module:Class`, and runs in a thread of the launcher.
    """

    args: FreeArgs = Field(default_factory=dict)
    """Keyword arguments of a tracker of your own, as written."""

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @property
    def name(self) -> str:
        """Name of the tracker for messages: `tensorboard`, or `mine.py:Tracker`."""
        return short_name(self.type or "")

    @property
    def place(self) -> str | None:
        """Place of the tracker's class: `package.module:name` or `/abs/path.py:name`."""
        return None if self.type is None else built_ins().get(self.type, self.type)
