"""The workflow of a Flower app: it does what the ServerApp's process asks for, as effects."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flstream.compat.flower import requests
from flstream.compat.flower.content import FOLDER
from flstream.compat.flower.requests import AppCall, AppResult, ModelOfRun
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
    with closing(run.start_process("serverapp", AppCall, _MAIN, place)) as process:
        model = RunCalls(run, process, rounds, folder, model, resumes=args.resume).until_end()
    shutil.rmtree(folder, ignore_errors=True)
    return model


class RunCalls:
    """Methods that a ServerApp's process calls, one after another."""

    def __init__(
        self,
        run: Run,
        process: ChildProcess[AppCall],
        rounds: Iterator[int],
        folder: Path,
        model: Model,
        *,
        resumes: bool,
    ) -> None:
        self._run, self._process, self._resumes = run, process, resumes
        self._rounds, self._folder, self._newest = rounds, folder, model
        self._models: dict[int, Model] = {}
        self._batches: dict[int, Updates] = {}
        self._asked: dict[int, list[str]] = {}
        # Whether a message to train was sent in this round, and in any.
        self._has_trained = self._trains = self._has_begun = False

    def until_end(self) -> Model:
        """Answer calls until the app has ended, and return its last model."""
        while (call := self._process.receive()).method != "end":
            if call.method not in ("read", "fold"):
                self._send_unseen()
            self._process.send(AppResult(getattr(self, call.method)(*call.arguments)))
        self._send_unseen()
        version, error = call.arguments
        if error:
            raise WorkflowError(error)
        return self._models[version]

    def newest(self) -> ModelOfRun:
        """Return the run's newest model."""
        return self._note(self._newest)

    def send(
        self,
        batches: Any,
        timeout: float | None,
        unused_batches: Sequence[int],
        unused_models: Sequence[int],
    ) -> bool:
        """Send batches of messages; return False where the run is to end instead.

        Their sites answer once the answers are read or folded, or at the next call.

        Args:
            batches: The batches.
            timeout: Seconds that a site may take; None for the job's.
            unused_batches: Numbers of earlier batches to which the app refers no more.
            unused_models: Versions of models to which it does not.
        """
        self._drop(unused_batches, unused_models)
        sent = msgspec.convert(batches, list[requests.Batch])
        if not self._begin_round({batch.category for batch in sent}):
            return False
        for batch in sent:
            model = self._newest if batch.model is None else self._models[batch.model.version]
            facts = {"weight": batch.weighted_by, "needs_update": batch.is_folded_unseen}
            messages: Mapping[str, Any] = {
                message.site: {SENT: {"content": message.content, **message.facts, **facts}}
                for message in batch.messages
            }
            self._asked[batch.number] = list(messages)
            self._batches[batch.number] = self._run.ask(model, messages, timeout)
            if batch is not sent[-1]:  # a site has one task at a time
                len(self._batches[batch.number])
        return True

    def read(self, batch: int) -> list[requests.Answer]:
        """Return the answers to a batch."""
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

    def write_update(self, batch: int, site: str) -> str:
        """Write a site's update to a file, once, and return its path."""
        path = self._folder / f"reply-{batch}-{site}.safetensors"
        if not path.is_file():
            update = next(update for update in self._batches[batch] if update.site == site)
            self._run.save(update, path)
        return str(path)

    def store(self, path: str) -> ModelOfRun:
        """Make a durable file a model of the run."""
        if not self._has_begun:
            self._begin_round(set())
        return self._note(self._run.store(self._newest, Path(path)))

    def fold(
        self,
        batch: int,
        sites: Sequence[str] | None,
        weights: Sequence[float] | None,
        rule: tuple[str, Mapping[str, Any]] | None,
    ) -> ModelOfRun:
        """Fold the answers to a batch into a model.

        Args:
            batch: Number of the batch.
            sites: The sites whose answers are folded; None for all, as they come.
            weights: A weight for each of them; None for the answers' own.
            rule: Name and arguments of a strategy's rule; None for the mean.
        """
        updates: Any = self._batches[batch]
        base = updates.training.base
        if sites is None and updates.is_read:
            updates = [update for update in updates if update.has_tensors]
        elif sites is not None:
            by_site = {update.site: update for update in updates}
            updates = [by_site[site] for site in sites]
        by_weight = None if weights is None else FoldRule(weights, normalise=True)
        how = {}
        if rule is not None:
            from flstream.compat.flower.rules import rule_of  # imports NumPy

            how = rule_of(*rule)
        return self._note(self._run.fold(base, updates, by_weight, **how))

    def remember(self, name: str) -> bytes:
        """Return the bytes that were computed under a name; the app computes new ones."""
        return self._run.remember(name, self._computed)

    def report(self, version: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a model."""
        self._run.report(self._models[version], metrics)

    def _computed(self) -> bytes:
        self._process.send(AppResult(None))
        match self._process.receive():
            case AppCall("computed", [bytes() as value]):
                return value
            case AppCall("end", [_, error]):
                raise WorkflowError(error)
        raise WorkflowError(
            "evaluate_fn has sent messages, or looked at arrays of a reply, which it must not; do "
            "so in aggregate_train"
        )

    def _send_unseen(self) -> None:
        """Ask the sites of batches whose replies nobody has looked at or folded."""
        for updates in self._batches.values():
            if not (updates.is_read or updates.training.is_done):
                len(updates)

    def _drop(self, batches: Sequence[int], models: Sequence[int]) -> None:
        """Release models and answers, so that their files may go."""
        for version in models:
            self._models.pop(version, None)
        for number in batches:
            self._batches.pop(number, None)
            self._asked.pop(number, None)
            for path in [] if self._resumes else self._folder.glob(f"reply-{number}-*"):
                path.unlink()

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

    def _note(self, model: Model) -> ModelOfRun:
        self._models[model.version] = self._newest = model
        return ModelOfRun(model.version, str(self._run.path_of(model)), model.digest)


def _answer_of(update: Update) -> requests.Answer:
    if ERROR in update.meta:
        code, reason = update.meta[ERROR]
        return requests.Answer(update.site, None, reason, code)
    return requests.Answer(update.site, update.meta[SENT], has_update=update.has_tensors)
