"""Files of a model that a fold writes, with the files beside the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flstream.aggregation.fold_rule import ServerStep
from flstream.codecs.chain import CodecChain
from flstream.job.bodies import MAIN
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import body_digest
from flstream.model.joined import SplitWriter, WritesRanges
from flstream.model.layout import Layout
from flstream.model.source import Source
from flstream.runs.model_files import CHANGES, OPTIMIZER, body_file

if TYPE_CHECKING:
    from flstream.aggregation.optimizers import Optimization
    from flstream.aggregation.rules import AggregationRule
    from flstream.codecs.rounded_writer import RoundedWriter


class ModelDraft(NamedTuple):
    """Model that is being written.

    Attributes:
        target: Takes its bytes and those of the bodies beside it, as one body.
        optimization: The server optimizer with its state; None without one.
        finish: Function that makes it durable and gives it its name, after the bodies beside it.
            Given the digest of what was written, it returns the digests of the model, under an
            empty name, and of the bodies beside it by name, among them the server optimizer's
            state. It raises CheckpointError where the disk refuses it.
    """

    target: WritesRanges
    optimization: Optimization | None
    finish: Callable[[str], dict[str, str]]


@contextmanager
def model_draft(
    path: Path,
    layouts: Mapping[str, Layout],
    metadata: Mapping[str, str],
    rule: AggregationRule,
    optimizer: ServerStep | None,
    state: FileSource | None,
    codecs: CodecChain,
    base: Source,
) -> Iterator[ModelDraft]:
    """Write a model; leave nothing of it unless it is finished.

    Args:
        path: Path of its file; what belongs to it lies beside that.
        layouts: Its layout, under an empty name, and those of the bodies beside it by name.
        metadata: Strings of its header.
        rule: Rule that combines updates.
        optimizer: The server optimizer that makes a step; None for none.
        state: The optimizer's state before the step; None where there is none.
        codecs: Codecs of models, to the loss of which the model is rounded.
        base: The model that it is made of.

    Raises:
        CheckpointError: The disk does not take it.
    """
    layout, optimization, out = layouts[MAIN], None, None
    with ExitStack() as stack:
        sink = stack.enter_context(FileSink(path, layout, metadata))
        beside = {
            body: stack.enter_context(FileSink(body_file(path, body), body_layout))
            for body, body_layout in layouts.items()
            if body != MAIN
        }
        if optimizer is not None:
            from flstream.aggregation.optimizers import Optimization, state_layout

            beside_it = state_layout(optimizer.moments, layout, rule)
            out = stack.enter_context(FileSink(body_file(path, OPTIMIZER), beside_it))
            optimization = Optimization(optimizer, state, out)
        rounded: RoundedWriter | None = None
        changes = None
        if codecs.lossy is not None:
            from flstream.codecs.rounded_writer import RoundedWriter

            rounded = RoundedWriter(sink, codecs.lossy)
        elif codecs.changes is not None:
            from flstream.codecs.rounded_writer import ChangesWriter

            coded = codecs.changes.encoded(layout)
            changes = stack.enter_context(FileSink(body_file(path, CHANGES), coded))
            rounded = ChangesWriter(sink, codecs.changes, base, changes)
        main = rounded or sink
        target = SplitWriter({MAIN: main, **beside}) if beside else main

        def finish(digest: str) -> dict[str, str]:
            digests = {MAIN: digest}
            # The model last: where it is, what goes with it is, too.
            for body in beside.values():
                body.finish()
            if isinstance(target, SplitWriter):
                digests |= target.digests()
            if rounded is not None:
                digests[MAIN] = rounded.digest
            if changes is not None:
                digests[CHANGES] = body_digest(changes.finish())
            if out is not None:
                # The state came a block of each moment at a time, so its digest takes a pass.
                digests[OPTIMIZER] = body_digest(out.finish())
            sink.finish()
            return digests

        yield ModelDraft(target, optimization, finish)
