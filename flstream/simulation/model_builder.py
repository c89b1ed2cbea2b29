"""The model builder: a short-lived process that writes the initial checkpoint.

Building a module may need the whole model in memory, which the server must never have.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from flstream.aggregation.ahead import WriteBehind
from flstream.client.base import check_base, restore_base
from flstream.codecs.chain import chain_of
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.errors import ModelError
from flstream.job import Job, ModelSection
from flstream.model.checkpoint import FileSink, write_checkpoint
from flstream.model.composed import arranged
from flstream.model.copy import copy
from flstream.model.fitted import Differences, fitted
from flstream.model.formats import open_checkpoint
from flstream.model.layout import Layout
from flstream.model.order import ORDER, order_digest, order_text
from flstream.model.source import Source
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.base_builder import base_bytes
from flstream.simulation.export_files import MadeModel, keep_export_files
from flstream.simulation.factory import FactoryModel, factory_model, factory_outline
from flstream.simulation.forecast import Measured
from flstream.telemetry.events import ModelReady
from flstream.worker.user_code import prepare_imports


def build_model(job: Job, run: RunDirectory) -> ModelReady:
    """Write a job's initial model, and keep the files for its export."""
    prepare_imports(job)
    path, model = run.checkpoint(0), job.model
    metadata = {"format": "pt", "flstream.round": "0"}
    weights, order, result = _initial(model, job.seed, _build_of(job), path.parent)
    try:
        check_base()
    finally:
        restore_base()  # inline, sites have the same mapping
    layout = weights.layout
    if not layout.tensors:
        raise ModelError("the model has no tensors, so there is nothing to train or to exchange")
    if order:
        metadata[ORDER] = order
    # With a lossy codec, sites have what it leaves of a model, and so has the server.
    lossy = chain_of(job.streaming.codecs.of_models).lossy
    if lossy is None:
        digest = write_checkpoint(path, weights, metadata)
    else:  # as a fold writes it
        with FileSink(path, layout, metadata) as sink:
            rounded = RoundedWriter(sink, lossy)
            with closing(WriteBehind(layout, rounded.write)) as target:
                copy(weights, target)
            sink.finish()
        digest = rounded.digest
    keep_export_files(run.export_files, result, model.initial)
    return ModelReady(
        bytes=layout.nbytes, tensors=len(layout.tensors), digest=digest, order=order_digest(order)
    )


def _build_of(job: Job) -> str:
    # In one process, a debugger is to show what a factory makes: tensors in memory.
    is_debugged = job.engine.is_inline and job.model.build == "auto"
    return "whole" if is_debugged else job.model.build


def _initial(
    model: ModelSection, seed: int, build: str, folder: Path
) -> tuple[Source, str, MadeModel | None]:
    """Return the initial model, its tensors' order in code, and the factory's result."""
    if model.initial is None:
        built = factory_model(model, seed, build, folder)
        assert built.weights is not None
        return built.weights, order_text(built.layout, _names(built)), built.made
    weights = open_checkpoint(model.initial)
    if model.factory is None:
        source = arranged(weights)
        return source, weights.metadata.get(ORDER, "") if source is weights else "", None
    own = None
    if model.strict:
        built = factory_outline(model, seed, build, folder)
    else:
        built = factory_model(model, seed, build, folder)
        own = built.weights
    _fitting(model, built.layout, weights.layout)
    source = fitted(built.layout, weights, str(model.initial), own)
    return source, order_text(built.layout, _names(built)), built.made


def _names(built: FactoryModel) -> list[str]:
    return [*built.made.state] or built.layout.names


def initial_layout(job: Job) -> tuple[Layout, str, Measured]:
    """Return a job's initial layout, a sentence on differing tensors, and how it is built.

    The sentence, empty if none differ, names tensors that the file of weights and the factory's
    model do not share. The model has no bytes here if its factory allows that.
    """
    model, base = job.model, base_bytes(job.base)
    copied = Measured(way="range by range", base_bytes=base)
    if model.initial is not None:
        weights = open_checkpoint(model.initial)
        if weights.format == "npz":
            largest = max((spec.nbytes for spec in weights.layout.tensors), default=0)
            copied = replace(copied, way="array by array", memory=largest)
        if model.factory is None:
            return weights.layout, "", copied
    built = factory_outline(model, job.seed, _build_of(job), Path(tempfile.gettempdir()))
    frozen = _frozen_bytes(built, base)
    building = Measured(way=built.way, memory=built.memory, frozen=frozen, base_bytes=base)
    if model.initial is None:
        return built.layout, "", building
    differences = _fitting(model, built.layout, weights.layout)
    sentence = differences.sentence(model.initial.name) if differences else ""
    return built.layout, sentence, copied if model.strict else building


def _frozen_bytes(built: FactoryModel, base: int) -> int:
    """Return the bytes of a factory's module that are neither exchanged nor of the base."""
    import torch

    module = built.made.parts[0]
    if not isinstance(module, torch.nn.Module):
        return 0
    tensors = [*module.parameters(), *module.buffers()]
    storages = {tensor.untyped_storage()._cdata: tensor.nbytes for tensor in tensors}
    return max(sum(storages.values()) - built.layout.nbytes - base, 0)


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
