"""The fold of a cohort's updates in a worker: the walk that a server would do, fed by its peers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flstream.aggregation.adoption import kept_update, write_site_model
from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.optimizers import Optimization, optimizer_for
from flstream.aggregation.remote_body import RemoteBody
from flstream.aggregation.rules import AggregationRule, rule_for
from flstream.aggregation.update import UpdateSource
from flstream.aggregation.walk import fold_updates
from flstream.codecs.chain import chain_of
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.codecs.update_form import UpdateForm
from flstream.errors import StreamingError, UpdateRefusedError
from flstream.job.sections import AggregationSection, ServerOptimizerSection
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import body_digest
from flstream.model.layout import Layout
from flstream.model.source import Source
from flstream.streaming.settings import limits_for_updates
from flstream.worker.peer_messages import (
    Folded,
    Folding,
    FoldRefused,
    FoldTask,
    Kept,
    UpdatePlace,
)

if TYPE_CHECKING:
    from flstream.worker.peers import Peers

# Seconds between reports of how far a fold is.
_REPORT_SECONDS = 0.1


class WorkerFold:
    """One fold. The order of calls is :meth:`walk`, :meth:`keep` if that went well, :meth:`close`.

    Args:
        task: What is folded, and into which file.
        peers: Know the updates in this process, and the way to those in others.
        report: Takes how far the walk is, now and then.

    Raises:
        FlstreamError: The model cannot be read, or there is no disk for the next one.
    """

    def __init__(self, task: FoldTask, peers: Peers, report: Callable[[Folding], None]) -> None:
        self._task = task
        self._peers = peers
        self._report = report
        self._reported = time.monotonic()
        self._rule = _rule_of(task)
        self._remotes: dict[str, RemoteBody] = {}
        self._changed: set[str] = set()
        self._kept: dict[str, str] = {}
        self._digest = ""
        with ExitStack() as stack:
            self._base = FileSource(Path(task.base))
            layout = self._base.layout
            self._form = UpdateForm(self._base, chain_of(task.codecs))
            self._sink = stack.enter_context(FileSink(Path(task.path), layout, task.metadata))
            lossy = chain_of(task.codecs_down).lossy
            self._rounded = None if lossy is None else RoundedWriter(self._sink, lossy)
            self._state: FileSink | None = None
            self._optimization = self._optimization_of(stack)
            self._stack = stack.pop_all()

    def walk(self) -> Folded | FoldRefused:
        """Fold the updates into the file of the next model, which stays without a name.

        Raises:
            AggregationError: The updates are sound, and still the next model would not be finite.
            CheckpointError: The disk refused it, or the model is damaged.
            ChannelClosedError: The server is gone.
        """
        try:
            sources = [self._kept_source(place) for place in self._task.updates]
            target = self._rounded or self._sink
            with closing(WriteBehind(target.layout, target.write)) as sink:
                step, rule = self._task.step, self._rule
                digest = fold_updates(
                    self._base, sources, rule, sink, step, self._done, self._optimization
                )
            if self._rounded is not None:
                digest = self._rounded.digest
        except UpdateRefusedError as error:
            self.close()
            return FoldRefused(error.site, error.reason, self._kept)
        self._digest = digest
        costs = {site: remote.cost for site, remote in self._remotes.items()}
        for remote in self._remotes.values():
            with suppress(StreamingError):  # its bytes are here, and sound
                remote.close()
        sites = [place.site for place in self._task.updates]
        unchanged = [site for site in sites if site not in self._changed]
        return Folded(digest, unchanged, costs, self._kept)

    def keep(self) -> tuple[Kept, str, FileSource]:
        """Make the model durable, and give it its name; the optimizer's state before it.

        Returns:
            The answer, and the model with its digest.

        Raises:
            CheckpointError: The disk refused it.
        """
        with self._stack:
            state = ""
            if self._state is not None:
                # It was written here and there, so it is read again: see ModelStore.finish.
                state = body_digest(self._state.finish())
            return Kept(state), self._digest, self._sink.finish()

    def close(self) -> None:
        """Remove what was written, unless it was kept."""
        self._stack.close()

    def _kept_source(self, place: UpdatePlace) -> UpdateSource:
        """An update, once its site's model is kept where a later workflow collects it."""
        source = self._source(place)
        if not place.last:
            return source
        path = Path(place.last)
        self._kept[place.site] = write_site_model(
            path, self._base, source, self._rule, self._task.step, lambda: self._done(0)
        )
        return kept_update(path, source, self._rule)

    def _source(self, place: UpdatePlace) -> UpdateSource:
        return UpdateSource(
            place.site,
            self._decoder(place),
            place.weight,
            place.params_type,
            place.partial,
            lambda: self._changed.add(place.site),
            confirm=lambda: self._confirm(place.site),
        )

    def _confirm(self, site: str) -> None:
        if (remote := self._remotes.get(site)) is not None:
            remote.confirm()

    def _decoder(self, place: UpdatePlace) -> Callable[[], Source]:
        opener, kind = self._opener(place), place.params_type
        return lambda: self._form.decoded(opener(), kind)

    def _opener(self, place: UpdatePlace) -> Callable[[], Source]:
        if place.path:
            return lambda: FileSource(Path(place.path))
        if not place.peer:
            own = self._peers.held(place.effect)
            return lambda: own
        receiver = self._peers.receiver(place.peer)
        receiver.limits = limits_for_updates(self._base.layout, 1)

        def check(layout: Layout) -> None:
            difference = self._form.difference(layout, partial=place.partial)
            if difference:
                raise UpdateRefusedError(place.site, f"does not fit the model: {difference}")

        base = self._base if place.params_type == "FULL" else None
        settings = self._task.settings
        # Sites send each other frames as they are.
        remote = RemoteBody(place.site, receiver, place.token, settings, base, check)
        self._remotes[place.site] = remote
        return partial(remote.open, self._task.step)

    def _done(self, done: int) -> None:
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self._report(Folding(done))

    def _optimization_of(self, stack: ExitStack) -> Optimization | None:
        task = self._task
        optimizer = optimizer_for(ServerOptimizerSection.model_validate(task.optimizer))
        if optimizer is None or not task.state_out:
            return None
        layout = optimizer.state_layout(self._base.layout, self._rule)
        self._state = stack.enter_context(FileSink(Path(task.state_out), layout))
        before = FileSource(Path(task.state_in)) if task.state_in else None
        return Optimization(optimizer, before, self._state)


def _rule_of(task: FoldTask) -> AggregationRule:
    return rule_for(AggregationSection.model_validate(task.aggregation))
