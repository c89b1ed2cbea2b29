"""Models of a job's factory: recorded, whole in memory, module by module, or made by ranges."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import flstream
from flstream.client.seeding import seed_everything
from flstream.debugging import code_failed
from flstream.errors import FlstreamError, ModelError, UsageError
from flstream.job import ModelSection
from flstream.job.code import load, make
from flstream.model.checkpoint import BodyFile
from flstream.model.composed import arranged
from flstream.model.dtypes import code_of
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.modules import exchanged_state
from flstream.model.source import Source
from flstream.model.tensor_view import find_ties
from flstream.simulation.export_files import MadeModel
from flstream.text import MOST_OF_AN_ERROR, shortened

# The folder of this package, none of whose lines is to blame for what a factory raises.
_PACKAGE = str(Path(flstream.__file__).parent)


@runtime_checkable
class Written(Protocol):
    """Model whose tensors are computed and written one by one."""

    @property
    def layout(self) -> Layout:
        """Layout of the model."""
        ...

    @property
    def peak(self) -> int:
        """Most bytes of tensors in memory at a time."""
        ...

    def write(self, file: BodyFile) -> None:
        """Write the tensors of a file's layout to the file."""
        ...


class FactoryModel(NamedTuple):
    """Model of a factory.

    Attributes:
        layout: Layout of the model.
        made: Result of the factory.
        weights: Body of the model; None where only the layout is known.
        way: How the weights are made, such as ``tensor by tensor``.
        memory: Most bytes of the model in memory at a time.
    """

    layout: Layout
    made: MadeModel
    weights: Source | Written | None
    way: str
    memory: int


def recorded_model(model: ModelSection, seed: int) -> FactoryModel:
    """Call a factory in a recorder; the model is computed tensor by tensor.

    A factory that makes no tensor with torch has made the whole model then.

    Raises:
        NotRecordedError: The factory does what cannot be replayed, or fails.
        LayoutError: A tensor cannot be streamed.
    """
    # Imported here, as torch is.
    from flstream.model.recording import Recorder
    from flstream.model.replay import NotRecordedError

    recorder = Recorder()
    try:
        result, state = _call(model, seed, recorder, is_final=False)
    except Exception as error:
        raise NotRecordedError(recorder.flaw or str(error)) from error
    if recorder.is_unused:
        return _as_made(result, state)
    if recorder.flaw:
        raise NotRecordedError(recorder.flaw)
    assert state is not None
    places = {name: recorder.place(value) for name, value in state.items()}
    if lacking := [name for name, place in places.items() if place is None]:
        raise NotRecordedError(f"{lacking[0]!r} is no tensor that torch made in the factory")
    layout = _layout(state, places.__getitem__)
    weights = recorder.model(layout, state)
    return FactoryModel(layout, result, weights, "tensor by tensor", weights.peak)


def whole_model(model: ModelSection, seed: int) -> FactoryModel:
    """Call a factory; the model is in memory as a whole.

    Raises:
        ModelError: The factory fails, or its result is no model.
        LayoutError: A tensor cannot be streamed.
    """
    return _as_made(*_call(model, seed, nullcontext()))


def meta_model(model: ModelSection, seed: int) -> FactoryModel:
    """Call a factory on torch's meta device, where tensors have no bytes.

    Raises:
        ModelError: The factory does not work there.
        LayoutError: A tensor cannot be streamed.
    """
    import torch

    result, state = _call(model, seed, torch.device("meta"), is_final=False)
    if state is None or not any(getattr(value, "is_meta", False) for value in state.values()):
        return _as_made(result, state)
    if not all(getattr(value, "is_meta", False) for value in state.values()):
        raise ModelError("some of its tensors are not on the meta device")
    layout = _layout(state, lambda name: place_of(state[name]))
    return FactoryModel(layout, result, None, "whole", layout.nbytes)


def place_of(tensor: Any) -> tuple[object, ...]:
    """Return a key that is equal for tensors with the same elements of one storage."""
    form = tuple(tensor.shape), tensor.stride()
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), *form


def _as_made(result: MadeModel, state: Mapping[str, Any] | None) -> FactoryModel:
    if state is None:
        source: Source = result.parts[0]
        if not source.layout.is_canonical:
            source = arranged(source)
        return FactoryModel(source.layout, result, source, "range by range", 0)
    body = MemoryBody.of(state)
    return FactoryModel(body.layout, result, body, "whole", body.layout.nbytes)


def _layout(state: Mapping[str, Any], place: Callable[[str], object]) -> Layout:
    """Return the layout of tensors without bytes, each with a key of its elements."""
    entries = {name: (code_of(value, name), tuple(value.shape)) for name, value in state.items()}
    filled = [name for name in state if state[name].nbytes]
    ties = find_ties({name: (place(name), *entries[name]) for name in filled})
    return Layout.of(((name, *entry) for name, entry in entries.items() if name not in ties), ties)


def _call(
    model: ModelSection, seed: int, context: AbstractContextManager[Any], *, is_final: bool = True
) -> tuple[MadeModel, Mapping[str, Any] | None]:
    """Call a factory; return its result, and the state, which a body made by ranges has not."""
    import torch

    assert model.factory is not None
    factory = f"model.factory {model.factory}"
    seed_everything(seed)
    try:
        load(model.factory)  # what its module makes is no part of the model
        with context:
            result = make(model.factory, model.args)
            # The others of a tuple are for training code, such as a tokenizer.
            parts = result if isinstance(result, tuple) and result else (result,)
            is_module = isinstance(parts[0], torch.nn.Module)
            state = exchanged_state(parts[0]) if is_module else parts[0]
    except UsageError as error:
        raise ModelError(f"model.factory {error}") from error
    except FlstreamError:
        raise
    except Exception as error:
        if is_final:  # on another device it may be tried in vain
            code_failed(error)
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
        place = f"{own[-1].filename}, line {own[-1].lineno}" if own else "check model.args"
        text = " ".join(shortened(str(error), MOST_OF_AN_ERROR).split())
        raise ModelError(f"{factory} raised {type(error).__name__}: {text} ({place})") from error
    if isinstance(getattr(state, "layout", None), Layout) and hasattr(state, "read"):
        return MadeModel({}, parts), None
    if not isinstance(state, Mapping):
        raise ModelError(
            f"{factory} returned a {type(state).__name__}; it must return a torch module, a dict "
            "of tensors or a source, or a tuple that begins with one"
        )
    return MadeModel(state, parts), state
