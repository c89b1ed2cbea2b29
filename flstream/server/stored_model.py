"""Records of a model of a run: what is known of it, its file, and the bodies beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flstream.errors import CheckpointError, FlstreamError, WorkflowError
from flstream.model.checkpoint import FileSource
from flstream.model.joined import ZeroSource
from flstream.model.layout import Layout
from flstream.model.source import Source
from flstream.runs.sound_models import body_flaw
from flstream.telemetry.events import ModelRecord

Shapes = Mapping[str, Sequence[int]]
ShapesOf = Callable[[Shapes], Shapes]
"""Function from the shapes of a model's tensors, by name, to those of a body."""


class UnsoundModelError(BaseException):
    """The file of a model or an update on record is damaged or gone, and is needed again.

    It passes through a workflow, whatever that catches.

    Attributes:
        effect: Number of the effect that made it.
        flaw: One sentence that says what is wrong with its file.
    """

    def __init__(self, effect: int, flaw: str) -> None:
        super().__init__(flaw)
        self.effect = effect
        self.flaw = flaw


@dataclass
class StoredModel:
    """A model and its file.

    Attributes:
        record: What the journal says of it.
        effect: Number of the effect that made it; 0 for the initial model.
        is_verified: Whether this process wrote its file, or has read it and found its digest.
        verified: Names of the bodies beside it of which the same is known.
        source: Its file, once it is open; the header is parsed once.
        begun: The bodies that a workflow that began with it gives it, by name: ``"zeros"``, or the
            function of its shapes, or None for that on record; None where none did, and those on
            record count.
        beside: The bodies beside it by name, once they are open.
        joined: The model with them as one source.
        host: Site at which it was folded, whose worker offers it; empty for the server.
        own: Names of the bodies on record that are the server's own, of which sites send no part.
    """

    record: ModelRecord
    effect: int
    is_verified: bool = False
    verified: set[str] = field(default_factory=set)
    source: FileSource | None = None
    begun: Mapping[str, Any] | None = None
    beside: dict[str, Source] | None = None
    joined: Source | None = None
    host: str = ""
    own: Sequence[str] = ()

    def close(self) -> None:
        """Close the model's files; they are opened again when they are needed."""
        self.source = self.beside = self.joined = None


def opened(effect: int, path: Path, digest: str = "", order: str | None = None) -> FileSource:
    """Open a file of a model, which an effect has on record.

    Args:
        effect: Number of the effect.
        path: The file.
        digest: Digest that its body is to have, for which all of it is read; empty for any.
        order: Digest of the text for the order of its tensors, of those that are read; None for
            any.

    Raises:
        UnsoundModelError: It is damaged or gone.
    """
    try:
        source = FileSource(path)
    except CheckpointError as error:
        raise UnsoundModelError(effect, str(error)) from error
    if digest and (flaw := body_flaw(source, digest, order)):
        raise UnsoundModelError(effect, flaw)
    return source


def own_body(name: str, shapes_of: ShapesOf, model: Layout) -> ZeroSource:
    """Return a body of float32 zeros.

    Args:
        name: Name of the body.
        shapes_of: Function that a workflow gives for it.
        model: Layout of the model.

    Raises:
        WorkflowError: The function failed, or returned no shapes, or names that the model has.
    """
    function = f"the function of run.initial_model({name}=...)"
    try:
        shapes = shapes_of({spec.name: spec.shape for spec in model.tensors})
        entries = [(tensor, "F32", tuple(map(int, shape))) for tensor, shape in shapes.items()]
        if any(size < 0 for _, _, shape in entries for size in shape):
            raise ValueError("a shape has a negative number")
        layout = Layout.of(entries)
    except FlstreamError:
        raise
    except Exception as error:
        raise WorkflowError(
            f"{function} raised {type(error).__name__}: {error}; let it return shapes by name"
        ) from error
    taken = sorted(layout.by_name.keys() & set(model.names))
    if taken or not layout.tensors:
        names = f"a tensor {taken[0]!r}, which the model has" if taken else "none"
        raise WorkflowError(f"{function} returned {names}; let it return tensors of other names")
    return ZeroSource(layout)
