"""Sections of the job file for the initial model, and for the base that sites share."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, model_validator

from flstream.job.fields import Allowed, Flag, FreeArgs, Section, folder_of
from flstream.job.files import Checkpoint, Factory
from flstream.job.keys import schema_of, words
from flstream.job.problems import MISSING, Problem, RefusedValueError

_HF_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def _hf_place(place: str, info: ValidationInfo) -> str:
    """Return the absolute path of a folder, or a name of the Hugging Face cache."""
    folder = Path(os.path.abspath(folder_of(info) / place))
    if folder.is_dir():
        return str(folder)
    if not _HF_NAME.fullmatch(place):
        raise ValueError(f"there is no folder {folder}")
    if importlib.util.find_spec("transformers") is None:
        raise ValueError("there is no module transformers; pip install 'flstream[hf]'")
    return place


class BaseSection(Section):
    """The frozen part of the sites' models, in one file that all processes of a machine map.

    `flare.base_model()` returns it as a module ([how](../large-models.md#one-base-for-all-sites)).
    `base = "module:callable"` is short for `base { factory = "module:callable" }`.
    """

    hf: (
        Annotated[
            str,
            AfterValidator(_hf_place),
            Allowed("a folder of save_pretrained, or a name in the Hugging Face cache"),
        ]
        | None
    ) = None
    """A folder of pretrained weights, or the name of a model in the local Hugging Face cache.

    Nothing is downloaded. The class is the one that `architectures` of its config.json names.
    """

    factory: Factory | None = None
    """The callable that builds the base: `module:callable` or `path/to/file.py:callable`.

    It returns a torch module, or a tuple that begins with one. It is called with its weights when a
    run starts or resumes, and on torch's meta device by each `flare.base_model()`.
    """

    args: FreeArgs = Field(default_factory=dict)
    """Keyword arguments of the base's factory, as written."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """The dtype of floating-point parameters and saved buffers; null leaves them as they are."""

    _digest: str = PrivateAttr("")

    @model_validator(mode="before")
    @classmethod
    def _a_factory_alone(cls, value: Any) -> Any:
        return {"factory": value} if isinstance(value, str) else {} if value is None else value

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if self.hf is not None and self.factory is not None:
            state = f"given with factory = {self.factory}"
            raise RefusedValueError(Problem("hf", state, "left out, or else the factory"))
        if self.args and self.factory is None:
            allowed = "left out without model.base.factory"
            raise RefusedValueError(Problem("args", "given", allowed))
        if self.dtype is not None and not self.is_on:
            allowed = "left out without model.base.hf or model.base.factory"
            raise RefusedValueError(Problem("dtype", "given", allowed))
        return self

    @property
    def is_on(self) -> bool:
        """Whether there is a base."""
        return self.hf is not None or self.factory is not None

    @property
    def digest(self) -> str:
        """Digest of the built base, which names its file; empty before."""
        return self._digest

    def built(self, digest: str) -> Self:
        """Return the section of a base that is built; the digest is no key."""
        section = self.model_copy()
        section._digest = digest
        return section


class ModelSection(Section):
    """Source of the initial weights: a factory, a file, or both.

    Where both are given, the factory gives names, ties and dtypes, and the file the values.
    """

    factory: Factory | None = None
    """The callable that builds the model: `module:callable` or `path/to/file.py:callable`.

    The module is a .py file beside the job file, or an installed one. It returns a torch module, a
    dict of tensors, a body that is made by ranges (a source), or a tuple that begins with one.
    """

    args: FreeArgs = Field(default_factory=dict)
    """Keyword arguments of the factory, as written."""

    initial: Checkpoint | None = None
    """A file with the initial weights; null takes those the factory builds.

    The index of a sharded checkpoint is a .json file. Files of torch are loaded as weights only. A
    name that is tied to others in the model may be in the file under any of them.
    """

    strict: Flag = True
    """Whether the file must have the factory's tensors, and values that their dtypes hold.

    False keeps what the factory made for tensors that the file lacks or has in another shape, such
    as a new head; leaves out those that the model lacks; and rounds values to the model's dtypes.
    """

    build: Literal["auto", "whole", "by_module"] = "auto"
    """How the factory's model is built.

    `auto` has the tensors that torch makes in files, whose pages the kernel may put on the disk.
    The bits are those of `whole`, which has all of it in memory. `by_module` builds the modules on
    torch's meta device and initialises them one by one, each with a seed of its own: these are
    other values.
    """

    base: BaseSection = BaseSection()

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        if self.factory is None and self.initial is None:
            allowed = f"{words(schema_of(Factory))}, unless model.initial is given"
            raise RefusedValueError(Problem("factory", MISSING, allowed))
        return self
