"""Model record that training code receives and sends, after NVFlare's ``FLModel``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from flstream.errors import ClientError
from flstream.streaming.payload import default_registry

if TYPE_CHECKING:
    from flstream.model.layout import Layout
    from flstream.model.memory import Params


@default_registry.register_enum
class ParamsType(StrEnum):
    """Kind of the tensors in an :class:`FLModel`: weights, or a difference of weights."""

    FULL = "FULL"
    """Weights."""
    DIFF = "DIFF"
    """New weights minus the received ones."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"params_type is {value!r}; give it {' or '.join(cls)}")


# Text that float() would read as a number.
_TEXT = (str, bytes, bytearray)
_KINDS = {
    "params": "tensors by name, such as model.state_dict()",
    "metrics": "numbers by name, such as {'accuracy': 0.97}",
    "meta": "plain values by name",
    "optimizer_params": "plain values by name",
}


@default_registry.register_dataclass
@dataclass
class FLModel:
    """Model that a site receives or sends.

    Attributes:
        params: Tensors or arrays by name; None if only metrics are sent, or a file.
        params_type: Whether ``params`` are weights or a difference; a string is converted.
        metrics: Numbers by name, such as ``{"accuracy": 0.97}``, also scalars of NumPy or torch;
            None for none.
        current_round: Number of the round, from 0, as in NVFlare; None in an answer.
        total_rounds: Number of rounds in the job; None in an answer.
        meta: Plain values by name, or None for none; a site's reach the workflow, and the
            workflow's reach the site.
            ``meta["num_examples"]`` (or, as in NVFlare, ``meta["NUM_STEPS_CURRENT_ROUND"]``) is
            the update's weight in the mean: a number from 1e-15 to 1e15, 1 by default. The number
            of steps has to be above 0 beside ``num_examples``, too, since filters of updates divide
            by it. With ``meta["partial"]`` true the update may lack tensors, which then keep their
            values.
        optimizer_params: State of an optimizer as plain values, without tensors; None for none.
        start_round: Number of the first round, as in NVFlare.
        file: Path of a safetensors file with the tensors, in the place of ``params``; a relative
            one is below the site's own working folder. None for none.
    """

    params: Params | None = None
    params_type: ParamsType = ParamsType.FULL
    metrics: dict[str, float] | None = None
    current_round: int | None = None
    total_rounds: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    optimizer_params: dict[str, Any] | None = None
    start_round: int | None = 0
    file: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.params, str):  # in NVFlare, params_type comes first
            self.params, self.params_type = self.params_type, ParamsType(self.params)
        self.check()

    def check(self) -> None:
        """Refuse fields of a wrong kind; they may have been set since the model was made.

        Raises:
            ClientError: A field is of a wrong kind; the message names it.
            ValueError: There is no such ``params_type``.
        """
        self.params_type = ParamsType(self.params_type or ParamsType.FULL)  # None as in NVFlare
        if self.meta is None:
            self.meta = {}
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise ClientError(
                    f"FLModel({name}=...) was given a {type(value).__name__}; give it {kind}"
                )
        if isinstance(self.file, os.PathLike):
            self.file = os.fspath(self.file)
        if self.file is not None and not isinstance(self.file, str):
            kind = type(self.file).__name__
            raise ClientError(f"FLModel(file=...) was given a {kind}; give it the path of a file")
        if self.file is not None and self.params is not None:
            raise ClientError("FLModel was given both params and file; give it one of them")


def check_kinds(update: Layout, layout: Layout | None) -> None:
    """Refuse an update whose tensors differ from the model's in dtype or shape.

    Args:
        update: Layout of the update.
        layout: Layout of the received model; None if it was not received.

    Raises:
        ClientError: The message names the tensor, and what both have.
    """
    if layout is None:
        return
    for name, dtype, shape, *_ in update.tensors:
        spec = layout.find(name)
        if spec is None:
            continue  # which the server refuses
        if shape != spec.shape:
            raise ClientError(
                f"the update does not fit the model: tensor {name!r} has shape {list(shape)} "
                f"instead of {list(spec.shape)}; send tensors of the received shapes"
            )
        if dtype != spec.dtype:
            raise ClientError(
                f"the update does not fit the model: tensor {name!r} has dtype {dtype} instead of "
                f"{spec.dtype}; convert it before send(), or build the model in that dtype"
            )


def number_of(value: Any) -> float | None:
    """Return a value as a float; None if it is no number or too large for a float.

    Args:
        value: A number of Python, or a scalar of NumPy or torch of whatever shape. Text is none.
    """
    try:
        # NumPy and torch have this for what holds one element.
        plain = value.item() if hasattr(value, "item") else value
        return None if isinstance(plain, _TEXT) else float(plain)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def no_number(value: Any) -> str:
    """Describe a value that :func:`number_of` takes for no number, for a message."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "an int that no float can hold"
    shape = getattr(value, "shape", None) or ()
    of = f" of shape {list(shape)}" if shape else ""
    return f"a {type(value).__name__}{of} that is no number"
