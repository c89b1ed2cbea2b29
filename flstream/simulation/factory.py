"""Call of a job's model factory, and the layout of what it makes."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

from flstream.client.seeding import seed_everything
from flstream.debugging import code_failed
from flstream.errors import FlstreamError, LayoutError, ModelError, UsageError
from flstream.job import ModelSection
from flstream.job.code import make
from flstream.model.dtypes import code_of
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.modules import exchanged_state
from flstream.model.ties import find_ties
from flstream.text import MOST_OF_AN_ERROR, shortened


class MadeModel(NamedTuple):
    """Result of a model factory.

    Attributes:
        state: Tensors of the model, by name.
        parts: What it returned: the model, and whatever came with it in a tuple.
    """

    state: Mapping[str, Any]
    parts: tuple[Any, ...]


def layout_of(
    model: ModelSection, seed: int, *, with_bytes: bool = True
) -> tuple[Layout, MadeModel]:
    """Call a job's factory, and return the layout of its model, and what it has made.

    Args:
        model: Model section of the job, with a factory.
        seed: Seed for all random generators, set before the call.
        with_bytes: Whether the values are needed; if not, the factory is called on torch's meta
            device, where tensors have no bytes, and again only if it does not work there.

    Raises:
        ModelError: The factory failed, or returned something that is not a model.
        LayoutError: A tensor cannot be streamed.
    """
    if not with_bytes:
        try:
            return _layout_on(model, seed, "meta")
        except LayoutError:
            raise
        except Exception:  # of the user's code, which another device may suit
            return _layout_on(model, seed, None)
    return _layout_on(model, seed, None)


def _layout_on(model: ModelSection, seed: int, device: str | None) -> tuple[Layout, MadeModel]:
    import torch

    assert model.factory is not None
    factory = f"model.factory {model.factory}"
    seed_everything(seed)
    try:
        with nullcontext() if device is None else torch.device(device):
            result = make(model.factory, model.args)
    except UsageError as error:
        raise ModelError(f"model.factory {error}") from error
    except FlstreamError:
        raise
    except Exception as error:
        if device is None:  # on another one it may be tried in vain
            code_failed(error)
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelError(
            f"{factory} raised {type(error).__name__}: "
            f"{shortened(str(error), MOST_OF_AN_ERROR)} "
            f"({where.filename}, line {where.lineno})"
        ) from error
    # The others of a tuple are for training code, such as a tokenizer.
    parts = result if isinstance(result, tuple) and result else (result,)
    state = exchanged_state(parts[0]) if isinstance(parts[0], torch.nn.Module) else parts[0]
    if not isinstance(state, Mapping):
        raise ModelError(
            f"{factory} returned a {type(state).__name__}; it must return a torch module or a "
            "dict of tensors, or a tuple that begins with one"
        )
    if device == "meta" and any(getattr(value, "is_meta", False) for value in state.values()):
        layout = _meta_layout(state)
    else:
        layout = MemoryBody.of(state).layout
    return layout, MadeModel(state, parts)


def _meta_layout(state: Mapping[str, Any]) -> Layout:
    if not all(getattr(value, "is_meta", False) for value in state.values()):
        raise ModelError("some of its tensors are not on the meta device")
    entries = {name: (code_of(value, name), tuple(value.shape)) for name, value in state.items()}
    ties = find_ties(
        {
            name: (value.untyped_storage()._cdata, value.storage_offset(), value.stride(), *entry)
            for name, entry in entries.items()
            if (value := state[name]).nbytes
        }
    )
    return Layout.of(((name, *entry) for name, entry in entries.items() if name not in ties), ties)
