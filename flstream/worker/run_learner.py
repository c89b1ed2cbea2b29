"""Execution of tasks by a learner, for one site after another."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

from flstream.client.fl_model import FLModel
from flstream.client.learner import MODEL_FILE, SiteContext
from flstream.client.seeding import seed_everything, start_seed
from flstream.client.session import Session, decline, enter, knows_task
from flstream.debugging import sentence
from flstream.errors import ClientError
from flstream.job.code import check, load, make
from flstream.telemetry.events import EVALUATOR
from flstream.worker.messages import EVALUATE, SUBMIT_MODEL, Failed
from flstream.worker.site_turn import SiteTurn
from flstream.worker.turns import SiteTurns, serve_turns
from flstream.worker.user_code import (
    CodeFailure,
    enter_work_folder,
    log_traceback,
    run_code,
)
from flstream.worker.worker import Worker


class Trains(Protocol):
    """Learner that trains."""

    def train(self, model: FLModel) -> FLModel:
        """Train the received model."""


class Evaluates(Protocol):
    """Learner that scores models."""

    def evaluate(self, model: FLModel) -> FLModel:
        """Score the received model."""


def with_facts(
    learner: Any, arguments: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a learner's arguments, with the facts of the job that its constructor asks for."""
    wanted: Mapping[str, Any] = {}
    with suppress(TypeError, ValueError):  # of a class whose signature is not known
        wanted = signature(learner).parameters
    return {name: fact for name, fact in facts.items() if name in wanted} | dict(arguments)


def serve_learner(worker: Worker) -> None:
    """Execute tasks with one learner until the server stops the worker."""
    info = worker.info
    named, args = info.job.train.learner, info.job.train.args
    assert named is not None
    assert not isinstance(args, str)  # refused for a learner
    key = "evaluate.learner" if info.name == EVALUATOR else "train.learner"
    try:
        # Draws that sites share are the same in each process.
        seed_everything(start_seed(info.job.seed, ""))
        facts = {"sites": info.clients, "seed": info.job.seed}
        learner: Any = make(named, with_facts(load(named), args, facts))
        check(learner, f"{key} {named}", Trains, Evaluates)
    except BaseException as error:
        log_traceback(error)
        worker.send(Failed("", 0, sentence(error, _source(named))))
        return
    worker.ready()
    kind_of = type(learner).__name__
    prepared: str | None = None

    def train_or_evaluate(turn: SiteTurn, site: SiteContext) -> None:
        nonlocal prepared
        learner.site = site
        enter_work_folder(info.sites_folder, site.name)
        if prepared != site.name:
            prepared = None
            # So that setup() draws the same numbers whatever has run in this process before.
            seed_everything(site.seed)
            if hasattr(learner, "setup"):
                learner.setup()
            prepared = site.name
        turn.asks.update(task for task in (EVALUATE, SUBMIT_MODEL) if hasattr(learner, task))
        if not knows_task(turn):
            decline(turn)
            return
        if not hasattr(learner, turn.kind):
            raise ClientError(f"{kind_of} has no method {turn.kind}(self, model); define it")
        if getattr(learner, "exchange", "params") == "file":
            file = site.path_of(MODEL_FILE)
            argument: Any = turn.receive(file=file).file
        else:
            argument = turn.receive()
        answer = getattr(learner, turn.kind)(argument)
        if not isinstance(answer, FLModel):
            raise ClientError(
                f"{kind_of}.{turn.kind}() returned a {type(answer).__name__}; "
                "it must return an FLModel"
            )
        turn.answer(answer)

    def run(turns: SiteTurns, turn: SiteTurn) -> CodeFailure | None:
        site = turn.site
        assert site is not None  # it has just begun
        enter(Session(turns, turn))
        return run_code(partial(train_or_evaluate, turn, site), _source(named), info, site.name)

    serve_turns(worker, run)


def _source(named: str) -> Path:
    """Return the file that defines a class, for its lines in a traceback."""
    where = named.rpartition(":")[0]
    return Path(getattr(sys.modules.get(where), "__file__", None) or where)
