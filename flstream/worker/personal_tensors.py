"""The part of a model that is a site's own, in one task."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flstream.aggregation.rules import found_names
from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.own_files import KeptTensors
from flstream.errors import ClientError, UsageError
from flstream.job.bodies import PERSONAL
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.worker.answers import check_kinds


class PersonalTensors:
    """A part of the model that is the site's own, in one task.

    Args:
        patterns: Regular expressions that are found in the names of its tensors.
        layout: Layout of the received model.
        kept: The site's version of them.

    Attributes:
        names: Names of the tensors.

    Raises:
        UsageError: A pattern is found in no name, or nothing is left to share.
    """

    def __init__(self, patterns: Sequence[str], layout: Layout, kept: KeptTensors) -> None:
        self.names = found_names(PERSONAL, patterns, layout)
        if len(self.names) == len(layout.tensors):
            raise UsageError(
                f"{PERSONAL}: the patterns are found in the name of every tensor, so nothing is "
                "left to share; flstream inspect lists the names"
            )
        self._layout = layout
        self._kept = kept

    def put_into(self, tensors: Mapping[str, Any]) -> None:
        """Copy the site's version over received tensors, as far as it has one yet.

        Raises:
            ClientError: A tensor has another shape there.
        """
        self._kept.read_into({name: tensors[name] for name in self.names if name in tensors})

    def keep(self, answer: FLModel) -> None:
        """Write the site's version, as it was trained, into the site's state.

        Raises:
            ClientError: The answer lacks one of the tensors, or has it in another shape or kind.
        """
        params = answer.params or {}
        if ParamsType(answer.params_type) is not ParamsType.FULL:
            raise ClientError(
                "the answer has differences (params_type DIFF), and the site keeps tensors of its "
                "own; send the trained weights as they are"
            )
        aliases = self._layout.aliases
        own = {
            name: value for name, value in params.items() if aliases.get(name, name) in self.names
        }
        missing = self.names - {aliases.get(name, name) for name in own}
        if missing:
            raise ClientError(
                f"the answer lacks tensor {min(missing)!r}, which is the site's own; send it with "
                "the others, and it stays with the site"
            )
        body = MemoryBody.of(own, tied=aliases)
        check_kinds(body.layout, self._layout)
        self._kept.write_body(body, {})

    def others(self, selected: Collection[str] | None) -> Collection[str]:
        """Return the names of the tensors that are sent.

        Args:
            selected: Names of the tensors that are aggregated by the job; None for all.
        """
        names = self._layout.by_name.keys() if selected is None else selected
        return frozenset(names) - self.names
