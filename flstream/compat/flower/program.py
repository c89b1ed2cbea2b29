"""The workflow of a Flower app: it does what the ServerApp's process asks for, as effects."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flstream.compat.flower.requests import (
    FOLDER,
    Answer,
    AppCall,
    AppEnded,
    AppResult,
    Computed,
    FlowerApp,
    FromApp,
    ModelOfRun,
    Sent,
)
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

    app: str
    """The app, as JSON."""

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
    app = msgspec.json.decode(args.app, type=FlowerApp)
    place = app, run.all_sites, str(folder)
    with closing(run.start_process("serverapp", FromApp, _MAIN, *place)) as process:
        model = RunCalls(run, process, rounds, folder, model, resumes=args.resume).until_end()
    shutil.rmtree(folder, ignore_errors=True)
    return model


class RunCalls:
    """Methods that a ServerApp's process calls, one after another."""

    def __init__(
        self,
        run: Run,
        process: ChildProcess[FromApp],
        rounds: Iterator[int],
        folder: Path,
        model: Model,
        *,
        resumes: bool,
    ) -> None:
        self._run, self._process, self._resumes = run, process, resumes
        self._rounds, self._folder, self._newest = rounds, folder, model
        self._models: dict[int, Model] = {}
        # By number of a sending: for each message, the updates that its answer is among.
        self._sent: dict[int, list[tuple[Updates, str]]] = {}
        # Whether a message to train was sent in this round, and in any.
        self._has_trained = self._trains = self._has_begun = False

    def until_end(self) -> Model:
        """Answer calls until the app has ended, and return its last model."""
        while isinstance(call := self._process.receive(), AppCall):
            self._process.send(AppResult(getattr(self, call.method)(*call.arguments)))
        match call:
            case AppEnded(version, ""):
                return self._models[version]
            case AppEnded(_, error):
                raise WorkflowError(error)
        raise WorkflowError("the ServerApp's process has sent bytes that nobody asked for")

    def newest(self) -> ModelOfRun:
        """Return the run's newest model."""
        return self._note(self._newest)

    def send(
        self, number: int, messages: Any, timeout: float | None, unused: Sequence[tuple[str, int]]
    ) -> list[int]:
        """Send messages, and wait for the answers, unless the app folds them as they come.

        Args:
            number: Number of the sending.
            messages: The messages.
            timeout: Seconds that a site may take; None for the job's.
            unused: Numbers of earlier sendings (``sent``), and versions of models (``model``), to
                which the app refers no more.

        Returns:
            For each message, the number of the request that it is in: a site is asked for one thing
            at a time, with one model. None where the run is to end instead.
        """
        self._drop(unused)
        sent = msgspec.convert(messages, list[Sent])
        if not self._begin_round({message.category for message in sent}):
            return []
        tasks: dict[Any, dict[str, Any]] = {}
        counts: Counter[Any] = Counter()
        keys = []
        for message in sent:
            kind = message.category, message.version
            counts[kind, message.site] += 1
            keys.append((*kind, counts[kind, message.site]))
            tasks.setdefault(keys[-1], {})[message.site] = {SENT: message.facts}
        requests: list[Updates] = []
        for (_, version, _), of_sites in tasks.items():
            model = self._newest if version is None else self._models[version]
            requests.append(self._run.ask(model, of_sites, timeout))
            if len(requests) < len(tasks) or not sent[0].facts["needs_update"]:
                len(requests[-1])  # waits for the answers
        numbers = {key: place for place, key in enumerate(tasks)}
        places = [numbers[key] for key in keys]
        pairs = zip(places, sent, strict=True)
        self._sent[number] = [(requests[place], message.site) for place, message in pairs]
        return places

    def read(self, number: int) -> list[Answer]:
        """Return the answers to the messages of a sending."""
        sent = self._sent[number]
        requests = {id(updates): updates for updates, _ in sent}
        by_site = {key: {u.site: u for u in updates} for key, updates in requests.items()}
        return [_answer_of(by_site[id(updates)].get(site), site, updates) for updates, site in sent]

    def write_update(self, number: int, place: int) -> str:
        """Write the update of an answer to a file, once, and return its path."""
        path = self._folder / f"reply-{number}-{place}.safetensors"
        if not path.is_file():
            updates, site = self._sent[number][place]
            self._run.save(next(update for update in updates if update.site == site), path)
        return str(path)

    def store(self, path: str) -> ModelOfRun:
        """Make a durable file a model of the run."""
        if not self._has_begun:
            self._begin_round(set())
        return self._note(self._run.store(self._newest, Path(path)))

    def fold(
        self,
        number: int,
        places: Sequence[int] | None,
        weights: Sequence[float] | None,
        rule: tuple[str, Mapping[str, Any]] | None,
    ) -> ModelOfRun:
        """Fold answers to messages of one request into a model.

        Args:
            number: Number of the sending.
            places: Places of the messages; None for all, whose answers are folded as they come.
            weights: A weight for each of them; None for the answers' own.
            rule: Name and arguments of a strategy's rule; None for the mean.
        """
        sent = self._sent[number]
        answers, _ = sent[places[0] if places else 0]
        updates: Any = answers
        if places is not None:
            by_site = {update.site: update for update in answers}
            updates = [by_site[sent[place][1]] for place in places]
        elif answers.is_read:
            updates = [update for update in answers if update.has_tensors]
        by_weight = None if weights is None else FoldRule(weights, normalise=True)
        how = {}
        if rule is not None:
            from flstream.compat.flower.rules import rule_of  # imports NumPy

            how = rule_of(*rule)
        return self._note(self._run.fold(answers.training.base, updates, by_weight, **how))

    def remember(self, name: str) -> bytes:
        """Return the bytes that were computed under a name; the app computes new ones."""
        return self._run.remember(name, self._computed)

    def report(self, version: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a model."""
        self._run.report(self._models[version], metrics)

    def _computed(self) -> bytes:
        self._process.send(AppResult(None))
        match self._process.receive():
            case Computed(value):
                return value
            case AppEnded(_, error):
                raise WorkflowError(error)
        raise WorkflowError(
            "evaluate_fn has sent messages, or looked at arrays of a reply, which it must not; do "
            "so in aggregate_train"
        )

    def _drop(self, unused: Sequence[tuple[str, int]]) -> None:
        """Release models and answers, so that their files may go."""
        for kind, number in unused:
            (self._models if kind == "model" else self._sent).pop(number, None)
            drops = kind == "sent" and not self._resumes
            for path in self._folder.glob(f"reply-{number}-*") if drops else ():
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


def _answer_of(update: Update | None, site: str, updates: Updates) -> Answer:
    if update is None:
        return Answer(None, f"{site}: {updates.failures.get(site, 'the site is asked no more')}")
    if ERROR in update.meta:
        code, reason = update.meta[ERROR]
        return Answer(None, reason, code)
    return Answer(update.meta[SENT])
