"""Bodies beside a model that are the server's own: sites receive them, and send none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flstream.errors import FlstreamError, WorkflowError
from flstream.model.joined import ZeroSource
from flstream.model.layout import Layout

Shapes = Mapping[str, Sequence[int]]
ShapesOf = Callable[[Shapes], Shapes]
"""Function from the shapes of a model's tensors, by name, to those of a body."""


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
