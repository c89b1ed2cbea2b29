"""The model builder: a short-lived process that writes the initial model's checkpoint.

Building a module needs the whole model in memory, which the server must never have.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from flstream.aggregation.ahead import WriteBehind
from flstream.codecs.chain import chain_of
from flstream.codecs.lossy import LossyCodec
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.engines.processes import ProcessHost
from flstream.errors import ModelError, SimulationError
from flstream.job import Job, ModelSection
from flstream.job.code import make_importable
from flstream.model.checkpoint import FileSink, write_checkpoint
from flstream.model.composed import arranged
from flstream.model.copy import copy
from flstream.model.fitted import Differences, fitted
from flstream.model.formats.opening import open_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.order import ORDER, order_text
from flstream.model.source import Source
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.export_files import keep_export_files
from flstream.simulation.factory import MadeModel, layout_of
from flstream.simulation.process_call import NoAnswerError, ProcessCall
from flstream.telemetry.events import ModelReady
from flstream.transport.channel import AbortSignal
from flstream.worker.alias import install as install_alias

BUILDER = "model-builder"


def start_builder(job: Job, run: RunDirectory, host: ProcessHost) -> ProcessCall[ModelReady]:
    """Start the process that builds the initial model of a job."""
    target = f"{__name__}:_built"
    return ProcessCall(host, BUILDER, ModelReady, target, job, run, log=run.log(BUILDER))


def await_built(builder: ProcessCall[ModelReady], abort: AbortSignal) -> ModelReady:
    """Wait until the initial model is on disk.

    Raises:
        FlstreamError: It could not be built.
        AbortedError: The run is being stopped.
    """
    try:
        return builder.result(abort)
    except NoAnswerError as error:
        raise SimulationError(
            f"the process that builds the initial model {error}; see {BUILDER}.log"
        ) from None


def _built(job: Job, run: RunDirectory) -> ModelReady:
    if job.train.alias is not None:
        install_alias()
    make_importable(job.folder)
    lossy = chain_of(job.streaming.codecs.of_models).lossy
    return build(job.model, job.seed, run.checkpoint(0), run.export_files, lossy)


def build(
    model: ModelSection,
    seed: int,
    path: Path,
    export_files: Path,
    lossy: LossyCodec | None = None,
) -> ModelReady:
    """Write the initial model of a job.

    Args:
        model: Model section of the job, with a factory, a file with the weights, or both.
        seed: Seed for all random generators, set before the factory is called.
        path: Path of the checkpoint to write.
        export_files: Folder for what an export has beside the weights.
        lossy: Codec with which sites are sent models, which are rounded to what it leaves; None
            for none.

    Returns:
        Size, number of tensors and digest of the model.

    Raises:
        ModelError: The factory failed, or returned something that is not a model.
        CheckpointError: The weights cannot be read, or the checkpoint cannot be written.
        LayoutError: A tensor of the model cannot be streamed.
        CodecError: The codec cannot encode a number of the model.
    """
    metadata = {"format": "pt", "flstream.round": "0"}
    source, order, made = _initial(model, seed)
    layout = source.layout
    if not layout.tensors:
        raise ModelError("the model has no tensors, so there is nothing to train or to exchange")
    if order:
        metadata[ORDER] = order
    if lossy is None:
        digest = write_checkpoint(path, source, metadata)
    else:  # as a fold writes it
        with FileSink(path, layout, metadata) as sink:
            rounded = RoundedWriter(sink, lossy)
            with closing(WriteBehind(layout, rounded.write)) as target:
                copy(source, target)
            sink.finish()
        digest = rounded.digest
    keep_export_files(export_files, made, model.initial)
    return ModelReady(bytes=layout.nbytes, tensors=len(layout.tensors), digest=digest)


def _initial(model: ModelSection, seed: int) -> tuple[Source, str, MadeModel | None]:
    """Return the initial model, the order of its tensors in training code, and what was made."""
    if model.initial is None:
        layout, made = layout_of(model, seed)
        return MemoryBody.of(made.state), order_text(layout, made.state), made
    given = open_checkpoint(model.initial)
    if model.factory is None:
        if given.layout.is_canonical:
            return given, given.metadata.get(ORDER, ""), None
        return arranged(given), "", None
    layout, made = layout_of(model, seed, with_bytes=not model.strict)
    expect_fit(model, layout, given.layout)
    own = None if model.strict else MemoryBody.of(made.state)
    source = fitted(layout, given, str(model.initial), own)
    return source, order_text(layout, made.state), made


def expect_fit(model: ModelSection, layout: Layout, given: Layout) -> None:
    """Refuse a file of initial weights that are not those of the factory's model.

    Raises:
        ModelError: It lacks tensors, or has others; or, where that is allowed, it has none of the
            model. The message names them.
    """
    differences = Differences.between(layout, given)
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
