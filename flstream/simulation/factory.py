"""Models of a job's factory: in files, whole in memory, or made by ranges."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import flstream
from flstream.client.seeding import seed_everything
from flstream.debugging import code_failed
from flstream.errors import FlstreamError, LayoutError, ModelError, UsageError
from flstream.job import ModelSection
from flstream.job.code import load, make
from flstream.model.checkpoint import unnamed_file
from flstream.model.composed import arranged
from flstream.model.dtypes import code_of
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.modules import exchanged_state
from flstream.model.source import Source
from flstream.model.tensor_view import find_ties
from flstream.simulation.export_files import MadeModel
from flstream.text import MOST_OF_AN_ERROR, shortened

if TYPE_CHECKING:
    from flstream.simulation.module_init import ModuleByModule

# The folder of this package, none of whose lines is to blame for what a factory raises.
_PACKAGE = str(Path(flstream.__file__).parent)

WHOLE = "whole"
"""Way of a model that is in memory as a whole."""


class FactoryModel(NamedTuple):
    """Model of a factory.

    Attributes:
        layout: Layout of the model.
        made: Result of the factory.
        weights: Body of the model; None where only the layout is known.
        way: How the weights are made, such as ``in files``.
        memory: Most bytes of the model in memory at a time.
    """

    layout: Layout
    made: MadeModel
    weights: Source | None
    way: str
    memory: int


def factory_model(model: ModelSection, seed: int, build: str, folder: Path) -> FactoryModel:
    """Call a factory for a model with bytes, which has the same bits in files and in memory.

    Args:
        model: The section of the job file.
        seed: Seed of the job.
        build: ``whole`` for a model in memory, ``auto`` for one whose tensors lie in files, or
            ``by_module``.
        folder: Folder of the files.

    Raises:
        ModelError: The factory fails, or its result is no model.
        LayoutError: A tensor cannot be streamed.
        CheckpointError: The disk has no room for a tensor.
    """
    if build == "whole":
        return _as_made(*_call(model, seed, nullcontext()))
    if build == "auto":
        # Imported here, as torch is.
        from flstream.model.file_memory import FileMemory, give_back_results

        give_back_results()
        return in_files(_as_made(*_call(model, seed, FileMemory(folder))))
    outline, modules = _by_module(model, seed)
    file = unnamed_file(outline.layout, folder)
    modules.write(file)
    return outline._replace(weights=file)


def factory_outline(model: ModelSection, seed: int, build: str, folder: Path) -> FactoryModel:
    """Call a factory for a model without bytes if that is possible; see :func:`factory_model`."""
    if build == "by_module":
        return _by_module(model, seed)[0]
    try:
        built = meta_model(model, seed)
    except LayoutError:
        raise
    except Exception:  # of the user's code, which another device may suit
        return factory_model(model, seed, build, folder)
    return in_files(built) if build == "auto" else built


def _by_module(model: ModelSection, seed: int) -> tuple[FactoryModel, ModuleByModule]:
    from flstream.simulation.module_init import ModuleByModule

    outline = meta_model(model, seed)
    modules = ModuleByModule(outline, seed)
    return outline._replace(way="module by module", memory=modules.peak), modules


def in_files(built: FactoryModel) -> FactoryModel:
    """Describe a model whose tensors lie in files, but for short ones and one at a time."""
    from flstream.model.file_memory import LEAST_BYTES

    if not any(hasattr(value, "is_meta") for value in built.made.state.values()):
        return built  # made of arrays, or by ranges
    sizes = [spec.nbytes for spec in built.layout.tensors]
    memory = sum(size for size in sizes if size < LEAST_BYTES) + max(sizes, default=0)
    return built._replace(way="in files", memory=min(memory, built.layout.nbytes))


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
    entries = {name: (code_of(value, name), tuple(value.shape)) for name, value in state.items()}
    filled = [name for name in state if state[name].nbytes]
    ties = find_ties({name: (place_of(state[name]), *entries[name]) for name in filled})
    own = ((name, *entry) for name, entry in entries.items() if name not in ties)
    layout = Layout.of(own, ties)
    return FactoryModel(layout, result, None, WHOLE, layout.nbytes)


def place_of(tensor: Any) -> tuple[object, ...]:
    """Return a key that is equal for tensors with the same elements of one storage."""
    form = tuple(tensor.shape), tensor.stride()
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), *form


def _as_made(result: MadeModel, state: Mapping[str, Any] | None) -> FactoryModel:
    if state is None:
        source = arranged(result.parts[0])
        return FactoryModel(source.layout, result, source, "range by range", 0)
    body = MemoryBody.of(state)
    return FactoryModel(body.layout, result, body, WHOLE, body.layout.nbytes)


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
