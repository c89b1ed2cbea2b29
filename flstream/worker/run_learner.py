"""Execution of tasks by a learner: one object in a process, for one site after another."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from flstream.client.fl_model import FLModel
from flstream.client.learner import SiteContext
from flstream.client.seeding import seed_everything, start_seed
from flstream.client.session import Session, decline, enter, knows_task
from flstream.client.site_folder import enter_work_folder
from flstream.errors import ClientError
from flstream.job.code import check, make
from flstream.worker.code import LearnerCode
from flstream.worker.code_errors import CodeFailure, log_traceback, run_code, sentence
from flstream.worker.messages import EVALUATE, SUBMIT_MODEL, Failed
from flstream.worker.turns import SiteTurn, SiteTurns, serve_turns
from flstream.worker.worker import Worker


def serve_learner(worker: Worker, code: LearnerCode) -> None:
    """Execute tasks with one learner until the server stops the worker.

    Args:
        worker: The worker.
        code: The learner's class and arguments.
    """
    runner = _LearnerRunner(worker, code)
    if runner.start():
        serve_turns(worker, runner.run)


class Trains(Protocol):
    """Learner that trains."""

    def train(self, model: FLModel) -> FLModel:
        """Train the received model."""


class Evaluates(Protocol):
    """Learner that scores models."""

    def evaluate(self, model: FLModel) -> FLModel:
        """Score the received model."""


class _LearnerRunner:
    """Runner of one learner.

    Args:
        worker: The worker.
        code: The learner's class and arguments.
    """

    def __init__(self, worker: Worker, code: LearnerCode) -> None:
        self._worker = worker
        self._code = code
        self._learner: Any = None
        self._prepared: str | None = None

    def start(self) -> bool:
        """Create the learner and report to the server; return whether that succeeded."""
        try:
            named = self._code.named
            # What sites share is the same in each process.
            seed_everything(start_seed(self._worker.info.seed, ""))
            learner = make(named, self._code.arguments)
            self._learner = check(learner, f"train.learner {named}", Trains, Evaluates)
        except BaseException as error:
            log_traceback(error)
            self._worker.send(Failed("", 0, sentence(error, self._source)))
            return False
        self._worker.ready()
        return True

    def run(self, turns: SiteTurns, turn: SiteTurn) -> CodeFailure | None:
        """Run the learner for one turn of a site; return why it failed, None if it did not."""
        site = turn.site
        assert site is not None  # it has just begun
        enter(Session(turns, turn))
        info = self._worker.info
        return run_code(partial(self._run, turn, site), self._source, info, site.name)

    def _run(self, turn: SiteTurn, site: SiteContext) -> None:
        learner = self._learner
        learner.site = site
        enter_work_folder(self._worker.info.sites_folder, site.name)
        if self._prepared != site.name:
            self._prepared = None
            # So that setup() draws the same numbers whatever has run in this process before.
            seed_everything(site.seed)
            if hasattr(learner, "setup"):
                learner.setup()
            self._prepared = site.name
        kind = turn.kind
        turn.asks.update(task for task in (EVALUATE, SUBMIT_MODEL) if hasattr(learner, task))
        if not knows_task(turn):
            decline(turn)
            return
        if not hasattr(learner, kind):
            raise ClientError(
                f"{type(learner).__name__} has no method {kind}(self, model); define it"
            )
        answer = getattr(learner, kind)(turn.receive())
        if not isinstance(answer, FLModel):
            raise ClientError(
                f"{type(learner).__name__}.{kind}() returned a {type(answer).__name__}; "
                "it must return an FLModel"
            )
        turn.answer(answer)

    @property
    def _source(self) -> Path:
        """File that defines the class, to find its lines in a traceback."""
        where = self._code.named.rpartition(":")[0]
        return Path(getattr(sys.modules.get(where), "__file__", None) or where)
