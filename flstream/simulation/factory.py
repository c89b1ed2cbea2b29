"""Calls of a job's model factory, and the layout of what it makes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from flstream.client.seeding import seed_everything
from flstream.debugging import code_failed
from flstream.errors import FlstreamError, ModelError, UsageError
from flstream.job.code import load
from flstream.model.checkpoint_header import expect_in_format
from flstream.model.dtypes import code_of
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.modules import exchanged_state
from flstream.text import MOST_OF_AN_ERROR, shortened

if TYPE_CHECKING:
    import torch


class MadeModel(NamedTuple):
    """What a model factory has made.

    Attributes:
        state: Tensors of the model, by name.
        parts: What it returned: the model, and whatever came with it in a tuple.
    """

    state: Mapping[str, Any]
    parts: tuple[Any, ...]


def make_model(
    factory: str, args: Mapping[str, Any], seed: int, device: str | None = None
) -> MadeModel:
    """Call a model factory.

    Args:
        factory: Name of the factory, as in a resolved job.
        args: Keyword arguments of the factory.
        seed: Seed for all random generators, set before the call.
        device: Default device of new tensors; on ``"meta"`` they have no bytes. None for torch's
            own default.

    Raises:
        ModelError: The factory failed, or returned something that is not a model.
    """
    import torch

    seed_everything(seed)
    try:
        make = _find(factory)
        with nullcontext() if device is None else torch.device(device):
            made = make(**args)
    except FlstreamError:
        raise
    except Exception as error:
        if device is None:  # on another one it may be tried in vain
            code_failed(error)
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelError(
            f"model.factory {factory} raised {type(error).__name__}: "
            f"{shortened(str(error), MOST_OF_AN_ERROR)} "
            f"({where.filename}, line {where.lineno})"
        ) from error
    # The others of a tuple are for training code, such as a tokenizer.
    parts = made if isinstance(made, tuple) and made else (made,)
    made = parts[0]
    state = exchanged_state(made) if isinstance(made, torch.nn.Module) else made
    if not isinstance(state, Mapping):
        raise ModelError(
            f"model.factory {factory} returned a {type(made).__name__}; it must return a torch "
            "module or a dict of tensors, or a tuple that begins with one"
        )
    return MadeModel(state, parts)


def _find(factory: str) -> Callable[..., Any]:
    try:
        found = load(factory)
    except UsageError as error:
        raise ModelError(f"model.factory {error}") from error
    if not callable(found):
        raise ModelError(f"model.factory {factory} is a {type(found).__name__}; name a function")
    made: Callable[..., Any] = found
    return made


def layout_on(
    factory: str, args: Mapping[str, Any], seed: int, device: str | None = None
) -> tuple[Layout, MadeModel]:
    """Call a model factory, and return the layout of its model, and what it has made.

    Raises:
        ModelError: The factory failed, or some of the tensors are on the meta device.
        LayoutError: A tensor cannot be streamed.
        CheckpointError: A tensor cannot be written into a checkpoint.
    """
    made = make_model(factory, args, seed, device)
    if device == "meta" and any(getattr(each, "is_meta", False) for each in made.state.values()):
        layout = _meta_layout(made.state)
    else:
        layout = MemoryBody.of(made.state).layout
    expect_in_format(layout, f"model.factory {factory}")
    return layout, made


def _meta_layout(state: Mapping[str, Any]) -> Layout:
    """Return the layout of tensors on the meta device; names with equal views are tied."""
    if not all(getattr(value, "is_meta", False) for value in state.values()):
        raise ModelError("some of its tensors are not on the meta device")
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    kept: dict[tuple[object, ...], str] = {}
    ties = {}
    for name in sorted(state):
        value: torch.Tensor = state[name]
        code = code_of(value, name)
        place = (value.untyped_storage()._cdata, value.storage_offset(), value.stride())
        first = kept.setdefault((*place, value.shape, code), name) if value.numel() else name
        if first == name:
            entries.append((name, code, tuple(value.shape)))
        else:
            ties[name] = first
    return Layout.of(entries, ties)
