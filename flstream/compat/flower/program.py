"""The workflow of a Flower app: it does what the ServerApp's process asks for, as effects."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Set
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flstream.compat.flower import requests
from flstream.compat.flower.content import FOLDER
from flstream.errors import ResumeRefusedError, WorkflowError
from flstream.workflows import FoldRule, Model, Run, Update, Updates, WorkflowArgs, workflow

if TYPE_CHECKING:
    from flstream.engines.child_process import ChildProcess

SENT = "flower"
"""Name of the value in a model's ``meta`` with the facts of a message, and of a reply's records."""

ERROR = "flower_error"
"""Name of the code and the reason of a reply with an error."""

_MAIN = "flstream.compat.flower.main:serve_app"


class AppArgs(WorkflowArgs):
    """Arguments of a Flower app."""

    folder: str
    """The app's folder."""

    component: str
    """The ServerApp, `package.module:name`."""

    config: str = "{}"
    """The app's settings (`app.config`), as JSON."""

    seed: int = 0
    """The job's seed."""

    resume: bool = True
    """Whether replies that the app reads stay on disk until the run ends, so that it can resume."""

    reads_replies: bool = True
    """Whether the app may read the arrays of replies, for the forecast of the disk."""

    keeps_none_with = "app.resume = false"

    def kept_updates(self, rounds: int, cohort: int) -> int:
        """Return how many replies may stay in files until the run ends."""
        return rounds * cohort if self.resume and self.reads_replies else 0


@workflow("flower", AppArgs)
def flower(run: Run, args: AppArgs) -> Model:
    """Run a ServerApp's main function in a process, and do what it asks for."""
    rounds, model = run.rounds(), run.initial_model()
    folder = run.path_of(model).parents[1] / FOLDER
    if folder.exists() and not args.resume:
        raise ResumeRefusedError(
            "the app's replies were not kept (app.resume = false), so the run cannot resume; "
            "leave out --resume to start a new one"
        )
    folder.mkdir(exist_ok=True)
    place = requests.AppPlace(
        args.folder, args.component, args.config, args.seed, run.all_sites, str(folder)
    )
    with closing(run.start_process("serverapp", requests.FromApp, _MAIN, place)) as process:
        model = _Dialogue(run, process, rounds, folder, resumes=args.resume).until_end(model)
    shutil.rmtree(folder, ignore_errors=True)
    return model


class _Dialogue:
    """Requests of a ServerApp, answered one after another."""

    def __init__(
        self,
        run: Run,
        process: ChildProcess[requests.FromApp],
        rounds: Iterator[int],
        folder: Path,
        *,
        resumes: bool,
    ) -> None:
        self._run, self._process, self._resumes = run, process, resumes
        self._rounds, self._folder = rounds, folder
        self._models: dict[int, Model] = {}
        self._batches: dict[int, Updates] = {}
        self._asked: dict[int, list[str]] = {}
        # Whether a message to train was sent in this round, and in any.
        self._has_trained = self._trains = self._has_begun = False

    def until_end(self, model: Model) -> Model:
        """Answer requests until the app has ended, and return its last model."""
        self._process.send(self._stored(model))
        while True:
            request = self._process.receive()
            if not isinstance(request, requests.Read | requests.FoldAnswers):
                self._send_unseen()
            if isinstance(request, requests.End):
                if request.error:
                    raise WorkflowError(request.error)
                return model if request.model is None else self._models[request.model]
            self._process.send(self._answer(request))

    def _send_unseen(self) -> None:
        """Ask the sites of batches whose replies nobody has looked at or folded."""
        for updates in self._batches.values():
            if not (updates.is_read or updates.training.is_done):
                len(updates)

    def _drop(self, request: requests.Send) -> None:
        """Release models and answers, so that their files may go."""
        for version in request.unused_models:
            self._models.pop(version, None)
        for number in request.unused_batches:
            self._batches.pop(number, None)
            self._asked.pop(number, None)
            for path in [] if self._resumes else self._folder.glob(f"reply-{number}-*"):
                path.unlink()

    def _answer(self, request: requests.FromApp) -> msgspec.Struct:
        match request:
            case requests.Send():
                return self._send(request)
            case requests.Read(batch):
                return requests.Answers(self._answers(batch))
            case requests.WriteUpdate():
                self._write(request)
                return requests.Done()
            case requests.Store(path):
                if not self._has_begun:
                    self._begin_round(set())
                return self._stored(self._run.store(self._newest, Path(path)))
            case requests.FoldAnswers():
                return self._folded(request)
            case requests.Remember(name):
                return requests.Value(self._run.remember(name, self._computed))
            case requests.Report(version, metrics):
                self._run.report(self._models[version], metrics)
                return requests.Done()
        raise WorkflowError(f"the ServerApp's process sent {type(request).__name__} out of turn")

    def _send(self, request: requests.Send) -> msgspec.Struct:
        self._drop(request)
        if not self._begin_round({batch.category for batch in request.batches}):
            return requests.End()
        for batch in request.batches:
            model = self._newest if batch.model is None else self._models[batch.model.version]
            facts = {"weight": batch.weighted_by, "needs_update": batch.is_folded_unseen}
            messages: Mapping[str, Any] = {
                sent.site: {SENT: {"content": sent.content, **sent.facts, **facts}}
                for sent in batch.messages
            }
            self._asked[batch.number] = list(messages)
            self._batches[batch.number] = self._run.ask(model, messages, request.timeout)
            if batch is not request.batches[-1]:  # a site has one task at a time
                len(self._batches[batch.number])
        return requests.Done()

    def _begin_round(self, categories: Set[str]) -> bool:
        """Begin a round with its first messages to train; return False where the run is to end.

        An app that has not sent any begins one with each messages to query.
        """
        is_train = "train" in categories
        is_query = "query" in categories and not self._trains
        if not self._has_begun or (is_train and self._has_trained) or is_query:
            # An app may have more rounds than the job: those are a part of the last one.
            next(self._rounds, None)
            if self._run.ended_early is not None:
                return False
            self._has_begun, self._has_trained = True, False
        self._has_trained |= is_train
        self._trains |= is_train
        return True

    def _answers(self, batch: int) -> list[requests.Answer]:
        updates = self._batches[batch]
        answers = {update.site: update for update in updates}
        failures = updates.failures
        return [
            _answer_of(answers[site])
            if site in answers
            else requests.Answer(
                site, None, f"{site}: {failures.get(site, 'the site is asked no more')}"
            )
            for site in self._asked[batch]
        ]

    def _write(self, request: requests.WriteUpdate) -> None:
        """Write a site's update to a file, once."""
        path = request.path_in(self._folder)
        if not path.is_file():
            updates = self._batches[request.batch]
            update = next(update for update in updates if update.site == request.site)
            self._run.save(update, path)

    def _folded(self, request: requests.FoldAnswers) -> msgspec.Struct:
        updates: Any = self._batches[request.batch]
        base = updates.training.base
        if request.sites is None and updates.is_read:
            updates = [update for update in updates if update.has_tensors]
        elif request.sites is not None:
            by_site = {update.site: update for update in updates}
            updates = [by_site[site] for site in request.sites]
        weights = None
        if request.weights is not None:
            weights = FoldRule(request.weights, normalise=True)
        rule = {}
        if request.rule is not None:
            from flstream.compat.flower.rules import rule_of  # imports NumPy

            rule = rule_of(*request.rule)
        model = self._run.fold(base, updates, weights, **rule)
        return self._stored(model)

    def _stored(self, model: Model) -> requests.ModelOfRun:
        self._models[model.version] = self._newest = model
        return requests.ModelOfRun(model.version, str(self._run.path_of(model)), model.digest)

    def _computed(self) -> bytes:
        self._process.send(requests.Value(None))
        match self._process.receive():
            case requests.Value(bytes() as value):
                return value
            case requests.End(_, error):
                raise WorkflowError(error)
        raise WorkflowError(
            "evaluate_fn has sent messages, or looked at arrays of a reply, which it must not; do "
            "so in aggregate_train"
        )


def _answer_of(update: Update) -> requests.Answer:
    if ERROR in update.meta:
        code, reason = update.meta[ERROR]
        return requests.Answer(update.site, None, reason, code)
    return requests.Answer(update.site, update.meta[SENT], has_update=update.has_tensors)
