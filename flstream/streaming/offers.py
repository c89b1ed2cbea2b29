"""What a service has on offer: refs, and the parts of them that receivers ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Unpack

from flstream.errors import RefusedError
from flstream.model.header import TensorInfo
from flstream.model.selected import SelectedSource
from flstream.model.source import Source
from flstream.streaming.refs import OfferOptions, RecentlySettled, Ref
from flstream.streaming.wire import NOBODY, Part, TensorSpec

NOT_ON_OFFER = "this ref is not on offer, or has settled"

# Selections of one ref whose layouts are kept for the next receiver that asks for the same.
_MOST_SELECTIONS = 4
# Parts that one receiver may have open of what it looked up.
_MOST_LOOKED_UP = 16


class Offers:
    """The refs that are on offer, by their tokens.

    Args:
        before_settled: Called with a ref that is certain to settle, before anybody knows.
        after_settled: Called with a ref that has settled.

    Attributes:
        refs: Every open ref, by token.
        settled: Those that settled last.
    """

    def __init__(
        self, before_settled: Callable[[Ref], None], after_settled: Callable[[Ref], None]
    ) -> None:
        self.refs: dict[bytes, Ref] = {}
        self.settled = RecentlySettled()
        self._before_settled = before_settled
        self._after_settled = after_settled
        self._looked_up: dict[str, list[bytes]] = {}

    def add(
        self,
        source: Source,
        receivers: Iterable[str],
        token: bytes | None = None,
        **options: Unpack[OfferOptions],
    ) -> Ref:
        """Put a source on offer: see :class:`~flstream.streaming.refs.Ref`."""
        ref = Ref(source, receivers, token, self._prepare_to_settle, self._forget, **options)
        self.refs[ref.token] = ref
        return ref

    def open_part(self, receiver: str, token: bytes, part: Part) -> Ref:
        """Put some tensors on offer to a receiver, under the token that it drew for them.

        Raises:
            RefusedError: They are not on offer to it.
            LayoutError: A tensor is asked for twice, or is not there.
        """
        if token == NOBODY or token in self.refs or token in self.settled:
            raise RefusedError(NOT_ON_OFFER)
        if part.of == NOBODY:
            return self._open_specs(receiver, token, part.specs)
        whole = self.refs.get(part.of)
        if whole is None or receiver not in whole.deliveries or (source := whole.source) is None:
            raise RefusedError(NOT_ON_OFFER)
        names = tuple(part.names)
        selected = whole.selections.get(names)
        if selected is None:
            selected = whole.selections[names] = SelectedSource.of(source, names)
            if len(whole.selections) > _MOST_SELECTIONS:
                del whole.selections[next(iter(whole.selections))]
        shared = whole.deliveries[receiver]
        for each in list(whole.parts.values()):
            if each.deliveries.get(receiver) is shared:
                each.abort("a later part took its place")
        part_ref = self._add_part(selected, receiver, token, names, [whole])
        # What it is sent of the part it is sent of the whole, and it is done with both at once.
        part_ref.deliveries[receiver] = shared
        return part_ref

    def _open_specs(self, receiver: str, token: bytes, specs: Iterable[TensorSpec]) -> Ref:
        labelled: dict[tuple[int, frozenset[str]], list[Ref]] = {}
        for ref in list(self.refs.values()):
            if receiver in ref.deliveries and "round" in ref.options:
                labelled.setdefault(ref.label, []).append(ref)
        chosen: list[tuple[Source, TensorInfo]] = []
        involved: dict[bytes, Ref] = {}
        for spec in specs:
            for ref in labelled.get((spec.round, frozenset(spec.tags)), []):
                source = ref.source
                if source is not None and (info := source.layout.find(spec.name)) is not None:
                    chosen.append((source, info))
                    involved[ref.token] = ref
                    break
            else:
                tags = f" and the tags {', '.join(sorted(spec.tags))}" if spec.tags else ""
                raise RefusedError(
                    f"no tensor {spec.name!r} of round {spec.round}{tags} is on offer here"
                )
        mine = self._looked_up.setdefault(receiver, [])
        mine[:] = [each for each in mine if each in self.refs]
        if len(mine) >= _MOST_LOOKED_UP:
            raise RefusedError(f"{len(mine)} lists of tensors are open; close some of them first")
        mine.append(token)
        names = [info.name for _, info in chosen]
        return self._add_part(SelectedSource(chosen), receiver, token, names, involved.values())

    def _add_part(
        self,
        source: Source,
        receiver: str,
        token: bytes,
        names: Iterable[str],
        wholes: Iterable[Ref],
    ) -> Ref:
        """Put a part on offer, to end with the first of what it is of.

        Raises:
            RefusedError: One of them has settled meanwhile.
        """
        wholes = list(wholes)
        size = min((each.max_chunk_size for each in wholes if each.max_chunk_size), default=None)
        part = self.add(source, [receiver], token, order=names, max_chunk_size=size)
        part.wholes = wholes
        for whole in wholes:
            whole.parts[part.token] = part
        if any(whole.source is None for whole in wholes):
            for whole in wholes:
                whole.selections.clear()
            part.abort(NOT_ON_OFFER)
            raise RefusedError(NOT_ON_OFFER)
        return part

    def _prepare_to_settle(self, ref: Ref) -> None:
        for part in list(ref.parts.values()):
            part.abort(f"{NOT_ON_OFFER}: what it is a part of has ended")
        self._before_settled(ref)

    def _forget(self, ref: Ref) -> None:
        self.settled[ref.token] = ref.settled
        self.refs.pop(ref.token, None)
        for whole in ref.wholes:
            whole.parts.pop(ref.token, None)
            for name, delivery in ref.deliveries.items():
                is_shared = whole.deliveries.get(name) is delivery
                if is_shared and delivery.closed_at is not None and whole.source is not None:
                    whole.receiver_done(name, delivery.failure)
        self._after_settled(ref)
