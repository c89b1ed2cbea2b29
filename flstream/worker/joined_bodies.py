"""Bodies that travel with a model, as training code's mappings in ``meta``.

A body that sites send a part of has a number for each float of the model. Training code that walks
over a state dict expects all of its names, so such a body, as it is received, also has zeros for
the model's integers and bools; and what is sent may have them, of which nothing is made. A body of
other names is the server's own, and is not sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from flstream.errors import ClientError
from flstream.job.bodies import CONTROL, MAIN
from flstream.model.copy import copy
from flstream.model.joined import ZeroSource, is_sent, joint_name, part_layout, split
from flstream.model.layout import Layout
from flstream.model.memory import Framework, MemoryBody, Params

if TYPE_CHECKING:
    from collections.abc import Sequence


RECEIVED_AS = {CONTROL: "scaffold_c_global"}
"""Further names of received bodies in ``meta``, which scripts of NVFlare look for."""

SENT_AS = {CONTROL: "scaffold_c_diff"}
"""Further names of sent bodies in ``meta``, which scripts of NVFlare give them."""


class JoinedBodies:
    """Bodies joined with the model of a task.

    Attributes:
        model: Layout of the model alone.
        received_as: Further names of the received ones.
        has_own: Whether one of them is the server's own.
    """

    def __init__(self, names: Sequence[str], joint: Layout, *, has_alias: bool) -> None:
        self._names = names
        self.received_as = RECEIVED_AS if has_alias else {}
        self._sent_as = SENT_AS if has_alias else {}
        self.model = part_layout(joint, MAIN, names)
        self._layouts = {name: part_layout(joint, name, names) for name in names}
        self._sent = [name for name in names if is_sent(self._layouts[name], self.model)]
        self.has_own = len(self._sent) < len(names)

    def taken_apart(
        self, tensors: Params, framework: Framework
    ) -> tuple[Params, Mapping[str, Params]]:
        """Return the model's tensors, and the tensors of other bodies by name."""
        parts = split(tensors, self._names)
        params = parts.pop(MAIN)
        layout, bodies = self.model, dict[str, Params]()
        for name, part in parts.items():
            if name not in self._sent:
                bodies[name] = part
                continue
            zeros = layout.subset(layout.by_name.keys() - part.keys(), ())
            body = MemoryBody.allocate(zeros, framework)
            copy(ZeroSource(zeros), body)
            whole = {**part, **body.tensors}
            whole |= {alias: whole[own] for alias, own in layout.aliases.items()}
            bodies[name] = bodies[self.received_as.get(name, name)] = whole
        return params, bodies

    def put_together(
        self, params: Params, meta: Mapping[str, Any], selected: Collection[str] | None
    ) -> Params:
        """Return an update, and the bodies in its answer's meta, as tensors of one body.

        ``selected`` names the model's tensors that are aggregated; None is all.
        """
        joint: dict[str, Any] = dict(params)
        for name in self._sent:
            layout = self._layouts[name]
            sent = meta.get(name, meta.get(self._sent_as.get(name, name)))
            if not isinstance(sent, Mapping):
                raise ClientError(
                    f"the answer has no tensors in meta[{name!r}], which the workflow folds beside "
                    f"the params; send a mapping by the names of the received meta[{name!r}]"
                )
            for own, value in sent.items():
                primary = layout.aliases.get(own, own)
                if primary in layout.by_name:
                    if selected is None or primary in selected:
                        joint[joint_name(name, own)] = value
                elif self.model.aliases.get(own, own) not in self.model.by_name:
                    raise ClientError(
                        f"meta[{name!r}] has a tensor {own!r}, which the model lacks; send tensors "
                        "by the names of the model's"
                    )
            expected = set(layout.by_name) if selected is None else layout.by_name.keys() & selected
            have = {layout.aliases.get(own, own) for own in sent}
            if missing := sorted(expected - have):
                raise ClientError(
                    f"meta[{name!r}] lacks the tensor {missing[0]!r}; send one for each float of "
                    "the model"
                )
        return joint

    def rest(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of an answer's meta that are no bodies."""
        known = {*self._layouts, *(self._sent_as.get(name, name) for name in self._layouts)}
        return {key: value for key, value in meta.items() if key not in known}

    def beside(self, own: MemoryBody, framework: Framework) -> MemoryBody:
        """Return a body over existing memory for the model, and new memory for the others."""
        tensors = dict(own.tensors)
        for name, layout in self._layouts.items():
            new = MemoryBody.allocate(layout, framework).tensors
            tensors |= {joint_name(name, tensor_name): value for tensor_name, value in new.items()}
        return MemoryBody.of(tensors, writable=True)
