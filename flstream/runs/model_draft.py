"""The files of a model that is being written, and of what belongs to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flstream.aggregation.fold_rule import ServerStep
from flstream.aggregation.optimizers import Optimization, state_layout
from flstream.aggregation.rules import AggregationRule
from flstream.codecs.lossy import LossyCodec
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.job.bodies import MAIN
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import body_digest
from flstream.model.joined import SplitWriter, WritesRanges
from flstream.model.layout import Layout
from flstream.runs.model_files import OPTIMIZER, body_file


@dataclass(frozen=True)
class ModelDraft:
    """A model that is being written.

    Attributes:
        sink: Takes its bytes.
        bodies: Take those of the bodies beside it, by name.
        target: Takes all of them, as one body.
        optimization: The server optimizer with its state; None without one.
        rounded: Rounds it to what sites will receive; None where they receive it as it is.
    """

    sink: FileSink
    bodies: Mapping[str, FileSink]
    target: WritesRanges
    optimization: Optimization | None
    rounded: RoundedWriter | None

    def finish(self, digest: str) -> dict[str, str]:
        """Make it durable, and give it its name; before it, the bodies beside it.

        Args:
            digest: Digest of what was written.

        Returns:
            Digest of the model, under an empty name, and of the bodies beside it by name, among
            them the server optimizer's state.

        Raises:
            CheckpointError: The disk refused it.
        """
        digests = {MAIN: digest}
        # The model last: where it is, what goes with it is, too.
        for sink in self.bodies.values():
            sink.finish()
        if isinstance(self.target, SplitWriter):
            digests |= self.target.digests()
        if self.rounded is not None:
            digests[MAIN] = self.rounded.digest
        if self.optimization is not None:
            state_out = self.optimization.state_out
            assert isinstance(state_out, FileSink)
            # It was written here and there, a block of each moment at a time; so it is read again.
            digests[OPTIMIZER] = body_digest(state_out.finish())
        self.sink.finish()
        return digests


@contextmanager
def model_draft(
    path: Path,
    layouts: Mapping[str, Layout],
    metadata: Mapping[str, str],
    rule: AggregationRule,
    optimizer: ServerStep | None,
    state: Path | None,
    lossy: LossyCodec | None,
) -> Iterator[ModelDraft]:
    """Write a model, which leaves nothing unless it is finished.

    Args:
        path: Path of its file; what belongs to it lies beside that.
        layouts: Its layout, under an empty name, and those of the bodies beside it by name.
        metadata: Strings of its header.
        rule: How updates are combined.
        optimizer: The server optimizer that makes a step; None for none.
        state: File of the optimizer's state before the step; None where there is none.
        lossy: Codec with a loss that the model is rounded to; None for none.

    Raises:
        CheckpointError: The disk does not take it.
    """
    layout, optimization = layouts[MAIN], None
    with ExitStack() as stack:
        sink = stack.enter_context(FileSink(path, layout, metadata))
        beside = {
            body: stack.enter_context(FileSink(body_file(path, body), body_layout))
            for body, body_layout in layouts.items()
            if body != MAIN
        }
        if optimizer is not None:
            state_in = None if state is None else FileSource(state)
            beside_it = state_layout(optimizer.moments, layout, rule)
            out = stack.enter_context(FileSink(body_file(path, OPTIMIZER), beside_it))
            optimization = Optimization(optimizer, state_in, out)
        rounded = None if lossy is None else RoundedWriter(sink, lossy)
        main = rounded or sink
        target = SplitWriter({MAIN: main, **beside}) if beside else main
        yield ModelDraft(sink, beside, target, optimization, rounded)
