"""Tensors that each site has a version of its own of, which is kept in the site's state.

Either they are a part of the model, such as its head (FedPer: Arivazhagan et al. 2019,
arXiv:1912.00818), or a whole model beside the global one (Ditto: Li et al. 2021, arXiv:2012.04221).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from flstream.client.answers import check_kinds
from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.personal_part import PersonalPart
from flstream.client.state import SiteState
from flstream.errors import ClientError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy, scatter
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, views_of

if TYPE_CHECKING:
    from flstream.model.memory import Params

OWN_FOLDER = ".flstream"
"""Folder in a site's state for what is kept there without the training code's doing."""

_STEP = 1 << 20


class PersonalTensors:
    """A site's own version of tensors, in one task.

    Args:
        part: Which tensors these are.
        layout: Layout of the received model.
        state: Files of the site.

    Attributes:
        names: Names of the tensors.

    Raises:
        UsageError: The patterns do not fit the model.
    """

    def __init__(self, part: PersonalPart, layout: Layout, state: SiteState) -> None:
        self.names = part.names(layout)
        self._file_name = part.file_name
        self._layout = layout
        self._state = state

    @property
    def _path(self) -> Path:
        return self._state.path / OWN_FOLDER / self._file_name

    def put_into(self, tensors: Params) -> None:
        """Copy the site's version over received tensors, as far as it has one yet.

        Args:
            tensors: Received tensors by name, which are written to.

        Raises:
            ClientError: The site's state cannot be laid out, or a tensor has another shape there.
            CheckpointError: The file of the site's version cannot be read.
        """
        path = self._path
        if not path.exists():
            return  # it has not trained yet
        own, scratch = FileSource(path), Scratch()
        kept = [spec for spec in own.layout.tensors if spec.name in self.names]
        body = MemoryBody.of({spec.name: tensors[spec.name] for spec in kept}, writable=True)
        for spec in kept:
            here = body.layout.by_name[spec.name]
            if (here.dtype, here.shape) != (spec.dtype, spec.shape):
                raise ClientError(
                    f"tensor {spec.name!r} is {here.dtype} {list(here.shape)} in the received "
                    f"model, and {spec.dtype} {list(spec.shape)} in the site's own version; start "
                    "a new run for another model"
                )
            for first in range(0, spec.nbytes, _STEP):
                last = min(first + _STEP, spec.nbytes)
                views = views_of(own, spec.start + first, spec.start + last, scratch)
                start, stop = here.start + first, here.start + last
                scatter(views, body.views(start, stop))
                body.commit(start, stop)

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
        check_kinds((spec[:3] for spec in body.layout.tensors), self._layout)
        # The state as a whole is made durable, under the digest of its content.
        with FileSink(self._path, body.layout, {"format": "pt"}, durable=False) as sink:
            copy(body, sink)
            sink.finish()

    def others(self, selected: Collection[str] | None) -> Collection[str]:
        """Return the names of the tensors that are sent.

        Args:
            selected: Names of the tensors that are aggregated by the job; None for all.
        """
        names = self._layout.by_name.keys() if selected is None else selected
        return frozenset(names) - self.names
