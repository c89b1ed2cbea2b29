"""Turns of a worker's sites, task after task, and delivery of their answers."""

from __future__ import annotations

import fcntl
import stat
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from flstream.client.learner import SiteContext
from flstream.client.ranks import RankPlace
from flstream.client.session import CallName
from flstream.codecs.frames import encoder_for
from flstream.errors import CheckpointError, ProtocolError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.digests import body_digest
from flstream.model.source import Source
from flstream.telemetry.events import Transfer
from flstream.worker.logged_values import step_of, values_of
from flstream.worker.messages import (
    Answered,
    Failed,
    Logged,
    OfferedUpdate,
    Progress,
    SiteAnswer,
    SiteTask,
    Task,
    WrittenUpdate,
)
from flstream.worker.ranks import RankStore
from flstream.worker.site_turn import SiteTurn
from flstream.worker.state import SiteState
from flstream.worker.task_model import TaskModel
from flstream.worker.user_code import CodeFailure
from flstream.worker.worker import Worker


class SiteTurns:
    """Turns of a worker's sites, task after task; a task's answers go out together.

    Args:
        worker: The worker.
        ranks: Store of the calls of the site's ranks, of which this process is the first; None
            without ``train.command``.

    Attributes:
        worker: The worker.
        place: Which of the site's processes this one is.
        optimizer_state: Value of ``train.optimizer_state``; None where the training code decides.
    """

    def __init__(self, worker: Worker, ranks: RankStore | None = None) -> None:
        self.worker = worker
        self.place = RankPlace() if ranks is None else ranks.place
        self.optimizer_state = worker.info.job.train.optimizer_state
        self._ranks = ranks
        self._model: TaskModel | None = None
        self._sites: deque[SiteTask] = deque()
        self._answers: list[SiteAnswer] = []
        self._is_delivered = False
        self._turn: SiteTurn | None = None
        # The site of the last turn, in its task.
        self._site: SiteContext | None = None

    def ready(self) -> None:
        """Report to the server that the training code is ready."""
        self.worker.ready(() if self._ranks is None else self._ranks.other_pids())

    def next(self, call: CallName = "receive", timeout: float | None = None) -> SiteTurn | None:
        """Return the unfinished turn, or begin the next one; None without a next one.

        A site whose folder cannot be used has no turn. A task is finished after its last site.
        """
        begun: Task | None = None
        if self._turn is None or self._turn.site is None:
            self._turn = None  # frees what it refers to before the next model arrives
            while self._turn is None and (self._sites or self._has_task(timeout)):
                self._turn = self._begin(self._sites.popleft())
            begun = None if self._model is None else self._model.task
        if self._ranks is not None:
            self._ranks.publish(call, self._turn is not None, begun)
        return self._turn

    def log(self, key: str, value: Any, step: int | None) -> None:
        """Record values in the run's events.

        A training that is repeated for the sake of its update alone records nothing: what it logged
        the first time counts.
        """
        number = 0 if self._site is None else self._site.round
        name = self.constants()["site_name"]
        values, at = list(values_of(key, value)), step_of(key, step)
        task = None if self._model is None else self._model.task
        if task is not None and task.kind == "train" and not task.keeps_state:
            return
        for own_key, plain, text in values:
            self.worker.send(Logged(number, name, own_key, plain, at, text))

    def fail(self, failure: CodeFailure) -> None:
        """Report that the training code failed, in its turn or between turns."""
        if self._turn is not None and self._turn.site is not None:
            self._turn.fail(failure)
        else:
            self.worker.send(Failed("", 0, *failure))

    def end(self) -> None:
        """End the tasks of the other ranks."""
        if self._ranks is not None:
            self._ranks.publish(None)

    def constants(self) -> dict[str, Any]:
        """Return the facts about the run and the site that stay the same in every task."""
        return self.worker.info.constants(self._site)

    def _has_task(self, timeout: float | None) -> bool:
        """Finish a task, and wait for the next one; return whether one came."""
        if self._model is not None:
            self.worker.enter(None)
            self._model.kept = None
            if not self._is_delivered:
                self._deliver(None)
        self._model, self._answers, self._is_delivered = None, [], False
        task = self.worker.next_task(timeout)
        if task is None:
            return False
        own = self.worker.info.site
        if own is not None and [part.site for part in task.sites] != [own]:
            raise ProtocolError(f"the server sent {own} a task of other sites")
        self._model, self._sites = TaskModel(self.worker, task), deque(task.sites)
        return True

    def _begin(self, site: SiteTask) -> SiteTurn | None:
        """Begin a site's part of the task; an unusable folder fails the site."""
        assert self._model is not None
        worker, task = self.worker, self._model.task
        if len(task.sites) > 1:
            worker.send(Progress(task.effect, "turn", site.site))
        try:
            worker.enter(site.site)
            state = SiteState(
                f"{worker.info.sites_folder}/{site.site}",
                site.effect or task.effect,
                site.state,
                is_kept=task.kind == "train" and task.keeps_state,
                oldest=task.oldest,
            )
        except OSError as error:
            reason = f"its folder in the run directory cannot be used: {error}"
            worker.send(Failed(site.site, task.effect, reason))
            return None

        def state_dir() -> Path:
            path = state.path
            if self._ranks is not None:
                self._ranks.publish_state(str(path))
            return path

        self._site = worker.info.context(task, site, state_dir)
        return SiteTurn(worker, self._model, self._site, state, self._take)

    def _take(self, answer: SiteAnswer, update: Source | None) -> None:
        assert self._model is not None
        self._answers.append(answer)
        if len(self._model.task.sites) == 1:
            self._deliver(update)

    def _deliver(self, update: Source | None) -> None:
        """Send the answers of the task; wait until the server has used their tensors."""
        assert self._model is not None
        model, task, answers = self._model, self._model.task, self._answers
        ref = None
        if update is not None:
            place: OfferedUpdate | WrittenUpdate
            if task.folder:
                site = answers[0].site
                path = Path(task.folder, f"{site}.safetensors")
                try:
                    place = _written(update, path, Path(self.worker.info.sites_folder, site))
                except (CheckpointError, OSError) as error:
                    # Its code has answered, so that nobody else says why nothing comes.
                    reason = f"its update cannot be written to {path}: {error}"
                    self.worker.send(Failed(site, task.effect, reason))
                    self._answers.clear()
                    return
            else:
                encoder = None
                frames = self.worker.changes.update_codecs.frames
                if frames is not None and task.kind == "train":
                    has_base = model.kept is not None and task.parts is None
                    bases = {task.model: model.kept} if has_base and model.kept else {}
                    encoder = encoder_for(frames, update.layout, bases)
                ref = self.worker.offer(update, encoder)
                place = OfferedUpdate(ref.token)
            answers = [structs.replace(answers[0], update=place)]
        self._is_delivered = True
        self.worker.send(Answered(task.effect, answers))
        if ref is not None and not (outcome := ref.wait()).ok:
            print(
                f"flstream: the update of round {task.round} was not used ({answers[0].site}): "
                f"{outcome.reason}",
                file=sys.stderr,
                flush=True,
            )


def serve_turns(worker: Worker, run: Callable[[SiteTurns, SiteTurn], CodeFailure | None]) -> None:
    """Run training code for one turn after another, until the server stops the worker.

    ``run`` runs the code for a turn. It returns why the site fails if the code has not answered;
    None if it always has.
    """
    turns = SiteTurns(worker)
    while (turn := turns.next()) is not None:
        failure = run(turns, turn)
        # An answer that the code sent before it failed counts, and may be on its way already.
        if turn.site is not None:
            assert failure is not None
            turn.fail(failure)
        del turn  # frees what it refers to before the next model arrives


def _written(update: Source, path: Path, site_folder: Path) -> WrittenUpdate:
    """Hand the update of a task's one site to its fold as a file.

    A file that is the site's alone is renamed, not copied.
    """
    began = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(update, FileSource) and _is_movable(update, path.parent, site_folder):
        digest = body_digest(update)
        update.path.replace(path)
    else:
        digest = write_checkpoint(path, update, durable=False)
    cost = Transfer(bytes=update.layout.nbytes, seconds=time.monotonic() - began)
    return WrittenUpdate(digest, cost)


def _is_movable(update: FileSource, folder: Path, site_folder: Path) -> bool:
    """Return whether a file is the site's own and on the disk of a folder, and none can write it.

    Whoever has it open, or has another name of it, would write to what is folded.
    """
    try:
        status = update.path.lstat()
        is_inside = site_folder.resolve() in update.path.resolve().parents
        if not is_inside or not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return False
        if status.st_dev != folder.stat().st_dev:
            return False
        # The system grants a lease only where no process has the file open to write, or mapped.
        for lease in (fcntl.F_RDLCK, fcntl.F_UNLCK):
            fcntl.fcntl(update.fd, fcntl.F_SETLEASE, lease)
    except OSError:
        return False
    return True
