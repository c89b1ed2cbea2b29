"""The model builder: a short-lived process that writes the initial checkpoint.

Building a module needs the whole model in memory, which the server must never have.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import flstream
from flstream.aggregation.ahead import WriteBehind
from flstream.client.base import check_base, restore_base
from flstream.client.seeding import seed_everything
from flstream.codecs.chain import chain_of
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.debugging import code_failed
from flstream.engines.processes import ProcessHost
from flstream.errors import FlstreamError, LayoutError, ModelError, SimulationError, UsageError
from flstream.job import Job, ModelSection
from flstream.job.code import make
from flstream.model.checkpoint import FileSink, write_checkpoint
from flstream.model.composed import arranged
from flstream.model.copy import copy
from flstream.model.dtypes import code_of
from flstream.model.fitted import Differences, fitted
from flstream.model.formats.opening import open_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.modules import exchanged_state
from flstream.model.order import ORDER, order_text
from flstream.model.source import Source
from flstream.model.ties import find_ties
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.child import prepare_imports
from flstream.simulation.export_files import MadeModel, keep_export_files
from flstream.simulation.process_call import NoAnswerError, ProcessCall
from flstream.telemetry.events import ModelReady
from flstream.text import MOST_OF_AN_ERROR, shortened
from flstream.transport.channel import AbortSignal

# The folder of this package, none of whose lines is to blame for what a factory raises.
_PACKAGE = str(Path(flstream.__file__).parent)

BUILDER = "model-builder"


def start_builder(job: Job, run: RunDirectory, host: ProcessHost) -> ProcessCall[ModelReady]:
    """Start the process that builds a job's initial model."""
    target = f"{__name__}:_built"
    return ProcessCall(host, BUILDER, ModelReady, target, job, run, log=run.log(BUILDER))


def await_built(builder: ProcessCall[ModelReady], abort: AbortSignal) -> ModelReady:
    """Wait until the initial model is on disk."""
    try:
        return builder.result(abort)
    except NoAnswerError as error:
        raise SimulationError(
            f"the process that builds the initial model {error}; see {BUILDER}.log"
        ) from None


def _built(job: Job, run: RunDirectory) -> ModelReady:
    """Write a job's initial model, and keep the files for its export."""
    prepare_imports(job.train.alias, job.folder, job.base)
    metadata, path = {"format": "pt", "flstream.round": "0"}, run.checkpoint(0)
    source, order, result = _initial(job.model, job.seed)
    try:
        check_base()
    finally:
        restore_base()  # inline, sites have the same mapping
    layout = source.layout
    if not layout.tensors:
        raise ModelError("the model has no tensors, so there is nothing to train or to exchange")
    if order:
        metadata[ORDER] = order
    # With a lossy codec, sites have what it leaves of a model, and so has the server.
    lossy = chain_of(job.streaming.codecs.of_models).lossy
    if lossy is None:
        digest = write_checkpoint(path, source, metadata)
    else:  # as a fold writes it
        with FileSink(path, layout, metadata) as sink:
            rounded = RoundedWriter(sink, lossy)
            with closing(WriteBehind(layout, rounded.write)) as target:
                copy(source, target)
            sink.finish()
        digest = rounded.digest
    keep_export_files(run.export_files, result, job.model.initial)
    return ModelReady(bytes=layout.nbytes, tensors=len(layout.tensors), digest=digest)


def _initial(model: ModelSection, seed: int) -> tuple[Source, str, MadeModel | None]:
    """Return the initial model, its tensors' order in code, and the factory's result."""
    if model.initial is None:
        layout, result = _call_factory(model, seed, with_bytes=True)
        return MemoryBody.of(result.state), order_text(layout, result.state), result
    weights = open_checkpoint(model.initial)
    if model.factory is None:
        if weights.layout.is_canonical:
            return weights, weights.metadata.get(ORDER, ""), None
        return arranged(weights), "", None
    layout, result = _call_factory(model, seed, with_bytes=not model.strict)
    _fitting(model, layout, weights.layout)
    own = None if model.strict else MemoryBody.of(result.state)
    source = fitted(layout, weights, str(model.initial), own)
    return source, order_text(layout, result.state), result


def initial_layout(model: ModelSection, seed: int) -> tuple[Layout, str]:
    """Return a job's initial layout, and a sentence on differing tensors, if any.

    The sentence names tensors that the file of weights and the factory's model do not share. The
    model has no bytes here if its factory allows that.
    """
    if model.factory is None:
        return _initial(model, seed)[0].layout, ""
    layout, _ = _call_factory(model, seed, with_bytes=False)
    if model.initial is None:
        return layout, ""
    differences = _fitting(model, layout, open_checkpoint(model.initial).layout)
    return layout, differences.sentence(model.initial.name) if differences else ""


def _fitting(model: ModelSection, layout: Layout, weights: Layout) -> Differences:
    """Refuse weights that are not the factory's model's; return the differences."""
    differences = Differences.between(layout, weights)
    if len(differences.missing) + len(differences.misshapen) == len(layout.tensors):
        raise ModelError(
            f"model.initial: no tensor of the file is the model's: "
            f"{differences.sentence(str(model.initial))}; give its tensors the names that "
            "model.factory has"
        )
    if model.strict and differences:
        raise ModelError(
            f"model.initial: {differences.sentence(str(model.initial))}; take a file of the model "
            "that model.factory builds, or set model.strict = false to keep what it makes for them"
        )
    return differences


def _call_factory(model: ModelSection, seed: int, *, with_bytes: bool) -> tuple[Layout, MadeModel]:
    """Call a job's factory, and return its model's layout, and its result.

    Where no bytes are needed, it is called on torch's meta device, where tensors have none, and
    again only if it does not work there.
    """
    if not with_bytes:
        try:
            return _made_on(model, seed, "meta")
        except LayoutError:
            raise
        except Exception:  # of the user's code, which another device may suit
            return _made_on(model, seed, None)
    return _made_on(model, seed, None)


def _made_on(model: ModelSection, seed: int, device: str | None) -> tuple[Layout, MadeModel]:
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
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
        place = f"{own[-1].filename}, line {own[-1].lineno}" if own else "check model.args"
        text = " ".join(shortened(str(error), MOST_OF_AN_ERROR).split())
        raise ModelError(f"{factory} raised {type(error).__name__}: {text} ({place})") from error
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
