"""Sections with a type and its arguments, built-in or of the user's code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from flstream.job.fields import PlainValue, Section
from flstream.job.values import render_value

AnySection = type[Section]
"""Class of a section."""

Sections = Mapping[Any, AnySection]
"""Sections of the arguments of built-in types, by type; None stands for null."""


class FreeSection(Section):
    """Arguments of the user's own code: any names, with values as they are written."""

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, PlainValue]


class TypedSection(Section):
    """A section `{ type, args { ... } }`; the name of a type alone stands for one without args.

    The key of the type may have another name, by an alias.
    """

    type: str | None
    args: SerializeAsAny[Section] = Field(default_factory=Section, validate_default=True)

    sections: ClassVar[Sections] = {}
    """Sections of the arguments of the built-in types, by type."""

    @classmethod
    def type_key(cls) -> str:
        """Return the key of the type in a job file."""
        return cls.model_fields["type"].alias or "type"

    @classmethod
    def built_in(cls) -> Sections:
        """Return the sections of the arguments of the built-in types, by type."""
        return cls.sections

    @classmethod
    def section_of(cls, kind: str) -> AnySection:
        """Return the section of a type's arguments; of user code, after its import."""
        return cls.built_in().get(kind, FreeSection)

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone(cls, value: Any) -> Any:
        return {cls.type_key(): value} if isinstance(value, str) else value

    @field_validator("args", mode="plain")
    @classmethod
    def _of_the_type(cls, value: Any, info: ValidationInfo) -> Any:
        if "type" not in info.data:
            return value  # the type's mistake is reported; the arguments cannot be checked
        if isinstance(value, Section):
            value = value.model_dump(exclude_unset=True)
        section = cls.section_of(info.data["type"])
        return section.model_validate(value, context=info.context)

    @property
    def name(self) -> str:
        """Name for messages: `gaussian`, or `mine.py:Filter` without a folder."""
        return short_name(self.type or "")

    def __str__(self) -> str:
        """Return the name with the arguments: `gaussian (sigma = 0.01)`."""
        args = ", ".join(f"{name} = {render_value(value)}" for name, value in self.args)
        return f"{self.name} ({args})" if args else self.name

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON schema, with the arguments of each built-in type."""
        reference, key = handler(core), cls.type_key()
        schema = handler.resolve_ref_schema(reference)
        args: Any = cls.model_fields["args"].annotation
        common = TypeAdapter(args).json_schema()["properties"]
        schema["properties"]["args"] = {"type": "object", "properties": common}
        schema["allOf"] = [
            {
                "if": {"properties": {key: {"const": kind}}, "required": [key]},
                "then": {"properties": {"args": section.model_json_schema()}},
            }
            for kind, section in cls.built_in().items()
        ]
        return reference


def short_name(place: str) -> str:
    """Return a built-in's name as it is, and `mine.py:Filter` for own code."""
    where, colon, name = place.rpartition(":")
    return f"{Path(where).name}{colon}{name}"
