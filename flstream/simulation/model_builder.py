"""The model builder: a short-lived process that writes the initial checkpoint.

Building a module may need the whole model in memory, which the server must never have.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from flstream.aggregation.ahead import WriteBehind
from flstream.client.base import check_base, restore_base
from flstream.codecs.chain import chain_of
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.engines.child_process import EndedProcessError
from flstream.engines.processes import ProcessHost
from flstream.errors import LayoutError, ModelError, SimulationError
from flstream.job import Job, ModelSection
from flstream.model.checkpoint import FileSink, unnamed_file, write_checkpoint
from flstream.model.composed import arranged
from flstream.model.copy import copy
from flstream.model.digests import body_digest
from flstream.model.fitted import Differences, fitted
from flstream.model.formats.opening import open_checkpoint
from flstream.model.layout import Layout
from flstream.model.order import ORDER, order_text
from flstream.model.source import Source
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.child import prepare_imports
from flstream.simulation.export_files import MadeModel, keep_export_files
from flstream.simulation.factory import (
    FactoryModel,
    Written,
    meta_model,
    recorded_model,
    whole_model,
)
from flstream.simulation.forecast import Building
from flstream.simulation.forked import ForkedError, forked
from flstream.simulation.process_call import ProcessCall
from flstream.telemetry.events import ModelReady
from flstream.text import MOST_OF_AN_ERROR, shortened
from flstream.transport.channel import AbortSignal

BUILDER = "model-builder"


def start_builder(
    job: Job, run: RunDirectory, host: ProcessHost, abort: AbortSignal
) -> ProcessCall[ModelReady]:
    """Start the process that builds a job's initial model."""
    call, log = (f"{__name__}:_built", job, run), run.log(BUILDER)
    return ProcessCall(host, BUILDER, ModelReady, *call, log=log, abort=abort)


def await_built(builder: ProcessCall[ModelReady]) -> ModelReady:
    """Wait until the initial model is on disk."""
    try:
        return builder.result()
    except EndedProcessError as error:
        raise SimulationError(
            f"the process that builds the initial model {error.how}; see {BUILDER}.log"
        ) from None


def _built(job: Job, run: RunDirectory) -> ModelReady:
    """Write a job's initial model, and keep the files for its export."""
    prepare_imports(job)
    build = _build_of(job)
    if build == "auto":
        try:
            return forked(lambda: _written(job, run, "record"))
        except ForkedError as error:
            building = Building("whole", 0, _clause(error))
            print(f"the initial model is built {building}", flush=True)
            build = "whole"
    return _written(job, run, build)


def _build_of(job: Job) -> str:
    # In one process, a debugger is to show what a factory makes: real tensors.
    is_debugged = job.engine.is_inline and job.model.build == "auto"
    return "whole" if is_debugged else job.model.build


def _written(job: Job, run: RunDirectory, build: str) -> ModelReady:
    path, model = run.checkpoint(0), job.model
    metadata = {"format": "pt", "flstream.round": "0"}
    weights, order, result = _initial(model, job.seed, build, path.parent)
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
    if lossy is None and isinstance(weights, Written):
        with FileSink(path, layout, metadata) as sink:
            weights.write(sink)
            digest = body_digest(sink)
            sink.finish()
    else:
        source = _source(weights, path.parent)
        if lossy is None:
            digest = write_checkpoint(path, source, metadata)
        else:  # as a fold writes it
            with FileSink(path, layout, metadata) as sink:
                rounded = RoundedWriter(sink, lossy)
                with closing(WriteBehind(layout, rounded.write)) as target:
                    copy(source, target)
                sink.finish()
            digest = rounded.digest
    keep_export_files(run.export_files, result, model.initial)
    return ModelReady(bytes=layout.nbytes, tensors=len(layout.tensors), digest=digest)


def _initial(
    model: ModelSection, seed: int, build: str, folder: Path
) -> tuple[Source | Written, str, MadeModel | None]:
    """Return the initial model, its tensors' order in code, and the factory's result."""
    if model.initial is None:
        built = _built_by(model, seed, build)
        assert built.weights is not None
        return built.weights, order_text(built.layout, _names(built)), built.made
    weights = open_checkpoint(model.initial)
    if model.factory is None:
        if weights.layout.is_canonical:
            return weights, weights.metadata.get(ORDER, ""), None
        return arranged(weights), "", None
    built = (_outlined if model.strict else _built_by)(model, seed, build)
    differences, own = _fitting(model, built.layout, weights.layout), None
    if not model.strict:
        assert built.weights is not None
        own = _source(built.weights, folder, {*differences.missing, *differences.misshapen})
    source = fitted(built.layout, weights, str(model.initial), own)
    return source, order_text(built.layout, _names(built)), built.made


def _built_by(model: ModelSection, seed: int, build: str) -> FactoryModel:
    if build == "whole":
        return whole_model(model, seed)
    if build == "record":
        return recorded_model(model, seed)
    from flstream.simulation.module_init import ModuleByModule

    built = meta_model(model, seed)
    weights = ModuleByModule(built, seed)
    return built._replace(weights=weights, way="module by module", memory=weights.peak)


def _names(built: FactoryModel) -> list[str]:
    return [*built.made.state] or built.layout.names


def _source(
    weights: Source | Written, folder: Path, names: Collection[str] | None = None
) -> Source:
    """Return a model, or some of its tensors, as a source: a file without a name."""
    if not isinstance(weights, Written):
        return weights
    layout = weights.layout
    file = unnamed_file(layout if names is None else layout.subset(names), folder)
    weights.write(file)
    return file


def initial_layout(job: Job) -> tuple[Layout, str, Building]:
    """Return a job's initial layout, a sentence on differing tensors, and how it is built.

    The sentence, empty if none differ, names tensors that the file of weights and the factory's
    model do not share. The model has no bytes here if its factory allows that.
    """
    model, seed, build = job.model, job.seed, _build_of(job)
    if model.initial is None:
        layout, building = _described(model, seed, build)
        return layout, "", building
    weights = open_checkpoint(model.initial)
    largest = max((spec.nbytes for spec in weights.layout.tensors), default=0)
    is_npz = weights.format == "npz"
    copied = Building("range by range", 0) if not is_npz else Building("array by array", largest)
    if model.factory is None:
        return weights.layout, "", copied
    layout, building = _described(model, seed, build)
    differences = _fitting(model, layout, weights.layout)
    sentence = differences.sentence(model.initial.name) if differences else ""
    return layout, sentence, copied if model.strict else building


def _described(
    model: ModelSection, seed: int, build: str, reason: str = ""
) -> tuple[Layout, Building]:
    """Return the layout of a factory's model, and how it is built."""
    if build == "auto":
        try:
            return forked(lambda: _described(model, seed, "record"))
        except ForkedError as error:
            return _described(model, seed, "whole", _clause(error))
    built = _outlined(model, seed, build)
    return built.layout, Building(built.way, built.memory, reason)


def _outlined(model: ModelSection, seed: int, build: str) -> FactoryModel:
    """Return a factory's model, without its bytes if that is possible."""
    if build != "whole":
        return _built_by(model, seed, build)
    try:
        return meta_model(model, seed)
    except LayoutError:
        raise
    except Exception:  # of the user's code, which another device may suit
        return whole_model(model, seed)


def _clause(error: Exception) -> str:
    return " ".join(shortened(str(error), MOST_OF_AN_ERROR).split())


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
