"""The model builder: a short-lived process that writes the initial model's checkpoint.

Building a module needs the whole model in memory, which the server must never have.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from flstream.aggregation.ahead import WriteBehind
from flstream.client.alias import install as install_alias
from flstream.codecs.chain import chain_of
from flstream.codecs.lossy import LossyCodec
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.debugging import code_failed
from flstream.errors import FlstreamError, ModelError
from flstream.job import Job, ModelSection
from flstream.job.code import make_importable
from flstream.model.body import Source
from flstream.model.checkpoint import FileSink, write_checkpoint
from flstream.model.copy import copy
from flstream.model.fitted import Arranged, Differences, Fitted
from flstream.model.formats.opening import open_checkpoint
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.order import ORDER, order_text
from flstream.runs.run_directory import RunDirectory
from flstream.server.play import BuildReport, Built, NotBuilt
from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output
from flstream.simulation.export_files import keep_export_files
from flstream.simulation.factory import MadeModel, layout_on
from flstream.telemetry.events import SERVER
from flstream.transport.messages import MessageChannel
from flstream.transport.sockets import SocketChannel


def builder_main(job: Job, run: RunDirectory, server: socket.socket) -> None:
    """Run the model builder's process: write the checkpoint, report the result, and end.

    Args:
        job: The job.
        run: The run directory.
        server: Socket for the report to the server.
    """
    ignore_interrupts()
    redirect_output(run.log("model-builder"))
    end_with_peer(server)
    channel = MessageChannel[BuildReport](SocketChannel(server, SERVER), SERVER, BuildReport)
    try:
        if job.train.alias is not None:
            install_alias()
        make_importable(job.folder)
        lossy = chain_of(job.streaming.codecs.of_models).lossy
        channel.send(build(job.model, job.seed, run.checkpoint(0), run.export_files, lossy))
    except FlstreamError as error:
        channel.send(NotBuilt(str(error)))
    except Exception as error:
        code_failed(error)
        channel.send(NotBuilt(f"building the model failed: {type(error).__name__}: {error}"))


def build(
    model: ModelSection,
    seed: int,
    path: Path,
    export_files: Path,
    lossy: LossyCodec | None = None,
) -> Built:
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
    initial = _initial(model, seed)
    if not initial.source.layout.tensors:
        raise ModelError("the model has no tensors, so there is nothing to train or to exchange")
    if initial.order:
        metadata[ORDER] = initial.order
    if lossy is None:
        digest = write_checkpoint(path, initial.source, metadata)
    else:
        digest = _write_rounded(path, initial.source, metadata, lossy)
    keep_export_files(export_files, initial.made, model.initial)
    layout = initial.source.layout
    return Built(layout.nbytes, len(layout.tensors), digest)


def _write_rounded(
    path: Path, source: Source, metadata: Mapping[str, str], lossy: LossyCodec
) -> str:
    """Write what a codec leaves of a model as :func:`write_checkpoint` does, and as a fold does."""
    with FileSink(path, source.layout, metadata) as sink:
        rounded = RoundedWriter(sink, lossy)
        with closing(WriteBehind(source.layout, rounded.write)) as target:
            copy(source, target)
        sink.finish()
    return rounded.digest


class _Initial(NamedTuple):
    """The initial model.

    Attributes:
        source: Its tensors.
        order: Their order in training code.
        made: What the factory has made; None without one.
    """

    source: Source
    order: str = ""
    made: MadeModel | None = None


def _initial(model: ModelSection, seed: int) -> _Initial:
    if model.initial is None:
        assert model.factory is not None  # loading the job file checked this
        layout, made = layout_on(model.factory, model.args, seed)
        return _Initial(MemoryBody.of(made.state), order_text(layout, made.state), made)
    given = open_checkpoint(model.initial)
    if model.factory is None:
        if given.layout.is_canonical:
            return _Initial(given, given.metadata.get(ORDER, ""))
        return _Initial(Arranged(given))
    own = None
    if model.strict:
        layout, made = _layout_without_bytes(model, seed)
        expect_fit(model, layout, given.layout)
    else:
        layout, made = layout_on(model.factory, model.args, seed)
        expect_fit(model, layout, given.layout)
        own = MemoryBody.of(made.state)
    fitted = Fitted(layout, given, str(model.initial), own, rounds=not model.strict)
    return _Initial(fitted, order_text(layout, made.state), made)


def _layout_without_bytes(model: ModelSection, seed: int) -> tuple[Layout, MadeModel]:
    """Call the factory for names, ties and dtypes, on torch's meta device if it works there."""
    assert model.factory is not None
    try:
        return layout_on(model.factory, model.args, seed, "meta")
    except Exception:  # of the user's code, which another device may suit
        return layout_on(model.factory, model.args, seed)


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
