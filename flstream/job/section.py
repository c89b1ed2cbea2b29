"""Base class of the sections of a job file."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Section of the job file: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
