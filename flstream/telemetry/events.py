"""Events of a run: one typed record each, one line of JSON in ``events.jsonl``.

The live view, the summary and later readers of ``events.jsonl`` all see the same events.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add, or_
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
from xxhash import xxh3_64_hexdigest

from flstream.errors import SimulationError
from flstream.telemetry.memory import NodeMemory

# JSON has no NaN and no infinity: they are written, and read back, as null. An event that has to
# have a number there is refused before it is written.
Metrics = Mapping[str, float | None]


class Event(msgspec.Struct, kw_only=True, tag_field="kind"):
    """Base class of all events.

    Attributes:
        time: Seconds since the epoch.
    """

    time: float = msgspec.field(default_factory=time.time)


SERVER = "server"
"""Name of the server's process, in events and to the sites."""

EVALUATOR = "evaluator"
"""Name of the process that scores models where ``evaluate.at`` is ``server``."""


class Transfer(msgspec.Struct, frozen=True):
    """Cost of transferring bodies in one direction.

    Attributes:
        bytes: Bytes of the bodies that arrived sound.
        requests: Number of fetch requests.
        chunks: Number of frames that carried the bytes.
        retries: Number of the requests that repeated one whose bytes were lost or damaged.
        seconds: Seconds from the first request to the last byte.
        reused: Bytes of the bodies that were not sent, since the receiver had them.
        encoded: Bytes of the bodies that came as fewer, in frames that an exact codec had encoded.
        with_base: Bytes of these whose frames were encoded with a model that both sides had.
        direct: Bytes of the bodies that the receiver read from the sender's file or memory itself.
    """

    bytes: int = 0
    requests: int = 0
    chunks: int = 0
    retries: int = 0
    seconds: float = 0.0
    reused: int = 0
    encoded: int = 0
    with_base: int = 0
    direct: int = 0

    def __add__(self, other: Transfer) -> Transfer:
        """Return the sum of two costs, of transfers one after the other."""
        return Transfer(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


def default_site_names(count: int) -> list[str]:
    """Names of the sites of a job that names none: ``site-1`` and up."""
    return [f"site-{number}" for number in range(1, count + 1)]


class LinkFacts(msgspec.Struct, frozen=True):
    """The emulated link of a site; means where it changes.

    Attributes:
        up: Bits a second that the site can send; None is without limit.
        down: Bits a second that it can receive; None is without limit.
        latency: Seconds that a byte travels, one way.
        jitter: Seconds that it may travel longer.
        loss: Fraction of packets that are lost.
    """

    up: float | None = None
    down: float | None = None
    latency: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0


class RunStarted(Event, tag="run_started"):
    """The run began.

    Attributes:
        clients: Number of sites.
        names: Names of the sites; empty where they are ``site-1`` and up.
        workers: Names of the processes that the sites share; empty where each site has its own.
        key_metric: Metric that decides which round is the best.
        key_metric_mode: Whether its best value is the largest or the smallest.
        network: Emulated links of the sites by name; empty where there are none.
        has_evaluator: Whether a process of its own scores models.
        clock: Whether time is that on the wall, or simulated (``time.clock``).
    """

    job: str
    seed: int
    rounds: int
    mode: Literal["pull", "native", "map"]
    chunk_size: int
    clients: int
    key_metric: str
    key_metric_mode: Literal["max", "min"]
    names: list[str] = []
    workers: list[str] = []
    network: dict[str, LinkFacts] = {}
    has_evaluator: bool = False
    clock: Literal["wall", "virtual"] = "wall"

    @property
    def sites(self) -> list[str]:
        """Names of the sites, in their fixed order."""
        return self.names or default_site_names(self.clients)

    @property
    def processes(self) -> list[str]:
        """Names of the processes that do the work of sites."""
        return self.workers or self.sites


class RunResumed(Event, tag="run_resumed"):
    """The run was resumed after an interruption.

    The lines after the record of ``effect`` were cut off: the workflow does these effects again.

    Attributes:
        round: Round of the newest model that is reused; 0 is the initial model, and None means that
        this has to be built again.
        warnings: Differences from the state in which the run was left, a sentence each.
        effect: Number of the last effect that is kept; 0 where only the initial model is.
        until: Time at which the sitting before ended, whose last lines may have been cut off.
    """

    round: int | None
    effect: int
    until: float = 0.0
    warnings: list[str] = []


class ProcessReady(Event, tag="process_ready"):
    """A process has finished its imports.

    Attributes:
        process: Its name.
        pid: Its pid.
        idle_rss: Its RSS in bytes, with that of the others.
        others: Pids of processes that count with it, where it is one of several.
    """

    process: str
    pid: int
    idle_rss: int
    others: list[int] = []


class ProcessEnded(Event, tag="process_ended"):
    """A process is about to end."""

    process: str
    peak_rss: int


class ModelReady(Event, tag="model_ready"):
    """The initial model is on disk.

    Attributes:
        bytes, tensors, digest: Of its body.
        order: Digest of the text for the order of its tensors; empty for that of their bytes.
    """

    bytes: int
    tensors: int
    digest: str
    order: str = ""


class BaseReady(Event, tag="base_ready"):
    """The base that all sites share is in its file (``model.base``)."""

    bytes: int
    tensors: int
    digest: str


class RoundStarted(Event, tag="round_started"):
    """Sites were asked to train; a round has one such event for each request."""

    round: int
    sites: list[str]


class SitePhaseChanged(Event, tag="site_state"):
    """A site is now downloading, training, evaluating, submitting or ready."""

    round: int
    site: str
    state: Literal["downloading", "training", "evaluating", "submitting", "ready"]


class LateReceived(Event, tag="late_received"):
    """A site has received tensors of the next model while it trained.

    Attributes:
        round: Round of its training.
        site: Name of the site.
        bytes: Bytes of the tensors on their way.
        seconds: Seconds of fetching them.
        waited: Seconds that its training has waited for them.
    """

    round: int
    site: str
    bytes: int
    seconds: float
    waited: float


class SiteUpdate(Event, tag="site_update"):
    """A site finished training and offers its update."""

    round: int
    site: str
    weight: float
    metrics: Metrics


class SiteLog(Event, tag="site_log", omit_defaults=True):
    """Training code or a workflow logged a value.

    Attributes:
        round: Round in which it was logged; 0 before the first one.
        site: Name of the site; empty for a value of the workflow's.
        key: Name of the value.
        value: The number; None for text, and for a number that is not finite.
        step: Step of the site's own; None where it gave none.
        text: The text; None for a number.
    """

    round: int
    site: str
    key: str
    value: float | None
    step: int | None = None
    text: str | None = None


class SiteFailed(Event, tag="site_failed"):
    """A site takes no part in a round, for a reason.

    Attributes:
        late: Whether the only reason is that the round did not wait longer.
        signal: Name of the signal that killed its process; empty for none.
        exit_status: Status with which its process ended by itself; None if it did not.
    """

    round: int
    site: str
    reason: str
    late: bool = False
    signal: str = ""
    exit_status: int | None = None


class SiteSuspended(Event, tag="site_suspended"):
    """A site failed too often, and is not asked again."""

    round: int
    site: str
    failures: int


class EndedEarly(Event, tag="ended_early"):
    """Training ended before the job's last round, for a reason."""

    round: int
    reason: str


class Warned(Event, tag="warned"):
    """Something is not an error, but most likely a mistake."""

    message: str


class Evaluated(Event, tag="evaluated"):
    """Sites have scored a model, or the evaluator has.

    Attributes:
        round: Round of the model.
        metrics: The model's score: the evaluator's metrics, or means over the sites, weighted by
            their own weights. Empty where sites score beside an evaluator, which has scored the
            model before.
        seconds: Seconds of the evaluation.
        down: Cost of the model's way to the sites and to the evaluator.
        version: Version of the model.
        received: Whether the sites had received the model to train it, and sent the metrics with
            their updates.
        sites: Each site's metrics: by metric, the values in the order of the run's sites, null for
            a site without one.
        scored: Numbers of these sites, from 0, in that order; null for all sites of the run.
        site_metrics: Means over the sites that score beside an evaluator; None without one.
    """

    round: int
    metrics: Metrics
    seconds: float
    down: Transfer
    version: int
    received: bool = False
    sites: Mapping[str, Sequence[float | None]] = {}
    scored: Sequence[int] | None = None
    site_metrics: Metrics | None = None


class ModelsCollected(Event, tag="models_collected"):
    """Models of single sites were collected.

    Attributes:
        round: Round in which they were.
        sites: The sites that have one.
        failures: By site, the reason why there is none.
        seconds: How long it took.
    """

    round: int
    sites: list[str]
    failures: Mapping[str, str]
    seconds: float


class ModelScored(Event, tag="model_scored"):
    """Sites have scored a model for themselves, not for a round.

    Attributes:
        round: Round in which they did.
        owner: Whose model it is: a site's name, or SRV_ and a name for one of the run.
        sites: How many sites have.
        metrics: Mean of each metric over them, weighted by their own weights.
        seconds: How long it took.
        down: Cost of the model's way to the sites.
    """

    round: int
    owner: str
    sites: int
    metrics: Metrics
    seconds: float
    down: Transfer


class PrivacySpent(msgspec.Struct, frozen=True):
    """Privacy that a private run has spent up to the end of a round.

    Attributes:
        epsilon: Epsilon of all folds so far, at the job's delta; None where it is infinite.
        clip_norm: Clipping norm of the round's last fold.
        clipped: Fraction of that fold's updates that were scaled down.
    """

    epsilon: float | None
    clip_norm: float
    clipped: float


class RoundFinished(Event, tag="round_finished"):
    """The model of a round is durable on disk.

    Attributes:
        digest: Digest of the model.
        download: Seconds until the last site had the model.
        train: Seconds from then until the last update was ready.
        upload_and_fold: Seconds of the walk over the updates.
        checkpoint: Seconds until the new model was durable.
        weights: Weight of each site in the mean, by name.
        updates: Number of updates of each site that has several in the round, by name.
        metrics: Weighted means of the metrics that the sites reported with their updates.
        down: Cost of transferring the model to the sites.
        up: Cost of transferring the updates to the server.
        optimizer_state: Digest of the server optimizer's state; empty without an optimizer.
        aggregator: Site in whose process the updates were folded; empty for the server's.
        privacy: Privacy spent; None where the job is not private.
        simulated_seconds: Seconds since the run began, by the virtual clock; None without one.
    """

    round: int
    digest: str
    download: float
    train: float
    upload_and_fold: float
    checkpoint: float
    weights: Mapping[str, float]
    metrics: Metrics
    down: Transfer
    up: Transfer
    optimizer_state: str = ""
    aggregator: str = ""
    privacy: PrivacySpent | None = None
    simulated_seconds: float | None = None
    updates: Mapping[str, int] = {}

    @property
    def phases(self) -> tuple[float, float, float, float]:
        """Seconds of download, training, upload and fold, and checkpoint."""
        return (self.download, self.train, self.upload_and_fold, self.checkpoint)


class ModelRecord(msgspec.Struct, frozen=True):
    """A model that an effect made.

    Attributes:
        round: Round in which it was made.
        version: Number of models that the run made before it; 0 for the initial model.
        step: Number of models that its round made before it.
        digest: Digest of its body.
        optimizer_state: Digest of the server optimizer's state beside it; empty without an
            optimizer.
        bodies: Digests of the bodies beside it that its workflow has named, by name.
        changes: Digest of its encoded changes from the model before it; empty without such a codec.
        base: Digest of the base that its adapter is around, where that is no longer the job's.
    """

    round: int
    version: int
    step: int
    digest: str
    optimizer_state: str = ""
    bodies: Mapping[str, str] = {}
    changes: str = ""
    base: str = ""


class ModelWritten(Event, tag="model_written"):
    """A model is about to get its name in the folder of checkpoints.

    Where no effect counts that made it, this tells its file from one of somebody else.

    Attributes:
        round: Round in which it was made.
        step: How many models its round had made before it.
    """

    round: int
    step: int


UNSYNCED = ("start", "next")
"""Effects whose records are synced with the next other one: until then they are done again."""


class EffectDone(Event, tag="effect"):
    """An effect of the workflow is done; a resumed run replays it from this record.

    Attributes:
        effect: Number of the effect, from 1, in the order of the program's calls.
        name: Kind of the effect, such as ``train`` or ``fold``.
        round: Round in which it was requested.
        request: Description of the request, for the message of a mismatch.
        arguments: Digest of all its arguments.
        is_provisional: Whether it is an evaluation that was due only because its round was the
            last: a run that is resumed with more rounds does not know it.
        model: Model that it made; None if it made none.
        result: Result of the effect, in the encoding of :mod:`flstream.telemetry.exact`.
    """

    effect: int
    name: str
    round: int
    request: str
    arguments: str
    is_provisional: bool = False
    model: ModelRecord | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")


class RunFinished(Event, tag="run_finished"):
    """The run ended with the status ``finished``, ``failed`` or ``stopped``."""

    status: Literal["finished", "failed", "stopped"]
    error: str = ""


class WorkerActivity(msgspec.Struct, frozen=True):
    """Present work of a worker.

    Attributes:
        worker: Name of the worker.
        state: Its state; ``ready`` once it has answered.
        since: Time at which the present site's work began, in seconds since the epoch.
        site: Site whose part of the task is being done.
        over: Number of the task's sites that are done.
        sites: Number of the task's sites.
        moved: Bytes of the model that the worker was sent for the task; while uploading, bytes of
            its update that were folded.
    """

    worker: str
    state: Literal["downloading", "training", "evaluating", "submitting", "ready", "uploading"]
    since: float
    site: str = ""
    over: int = 0
    sites: int = 1
    moved: int = 0


class Snapshot(Event, tag="snapshot"):
    """Whole picture of a run at one time, for live views only; not in the journal.

    Attributes:
        round: Number of the present round.
        phase: Present phase of the run: starting the sites, downloading, training, evaluating,
            submitting, folding, or writing the checkpoint.
        asked: Number of sites that have the present task, or are to get it.
        done: Number of these sites that have done it.
        failed: Number of these sites that failed at it.
        answers: Number of answers of sites to all tasks of this sitting.
        down: Bytes of models that were sent to sites in this sitting.
        up: Bytes of updates that were folded in this sitting.
        rates: Bytes down, bytes up and answers a second, over the last two seconds.
        folded: Bytes of the model that the present walk over the updates has done.
        workers: Activity of the workers, of those that have been at work longest where there are
            more than 32.
    """

    round: int = 0
    phase: str = "starting the sites"
    asked: int = 0
    done: int = 0
    failed: int = 0
    answers: int = 0
    down: int = 0
    up: int = 0
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    folded: int = 0
    workers: list[WorkerActivity] = []


class NodesAwaited(Event, tag="nodes_awaited"):
    """A run waits for nodes. Events of nodes change no bit, and are not kept."""


class NodeJoined(Event, tag="node_joined"):
    """A node has joined the run.

    Attributes:
        node: Name of the node.
        cpus: How many workers it has room for.
        other_processor: Name of its processor, if it is another one than the launcher's, which may
            round otherwise; else empty.
    """

    node: str
    cpus: int
    other_processor: str = ""


class NodeLost(Event, tag="node_lost"):
    """A node, and with it its workers, is lost to the run.

    Attributes:
        node: Name of the node.
        reason: Clause that says why.
    """

    node: str
    reason: str


class NodeMeasured(Event, tag="node_measured"):
    """Measurements of another node's memory sampler since the last such event.

    Attributes:
        node: Name of the node.
        memory: Its measurements.
    """

    node: str
    memory: NodeMemory


class ProcessStarted(Event, tag="process_started"):
    """A process was started on the launcher's machine."""

    process: str
    pid: int


class RunRefused(Event, tag="run_refused"):
    """The run cannot begin with this job; the error says what to change."""

    error: str


NodeEvent = NodesAwaited | NodeJoined | NodeLost | NodeMeasured
LiveEvent = Snapshot | ProcessStarted | RunRefused | NodeEvent
"""What the launcher is told, and the journal does not keep."""

if TYPE_CHECKING:
    AnyEvent: TypeAlias = Event
else:
    AnyEvent = reduce(or_, Event.__subclasses__())

_encoder = msgspec.json.Encoder()


class Emit(Protocol):
    """Receiver of a run's events; any thread may call it."""

    def __call__(self, *events: AnyEvent) -> None:
        """Take events, in order."""


_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)

NO_CHECK = b"0" * 16
"""Check that the first line of a journal follows."""

# The checks are found from the end, so that a reader need not know the event.
_END = re.compile(rb',"follows":"(.{16})","check":"(.{16})"}\s*\Z', re.DOTALL)


class LineChecks(NamedTuple):
    """Checks at the end of a journal's line, in hexadecimal.

    Attributes:
        follows: Check of the line before.
        check: The xxh3 digest of all that stands before it in the line.
    """

    follows: bytes
    check: bytes


def checks_of(line: bytes) -> LineChecks | None:
    """Return the checks at the end of a line, whole or not; None without them."""
    match = _END.search(line[-60:])
    return LineChecks(*match.groups()) if match is not None else None


def encode_lines(events: Iterable[AnyEvent], follows: bytes = NO_CHECK) -> bytes:
    """Encode events as consecutive lines of JSON, each with its newline.

    The last keys of each are ``follows``, the check of the line before, and ``check``, the xxh3
    digest of what stands before it, both in hexadecimal. So a line that is changed, missing,
    doubled or in another place is noticed.

    Raises:
        SimulationError: An event could not be read again, since a number of it is not finite.
    """
    lines = []
    for event in events:
        encoded = _encoder.encode(event)
        if b"null" in encoded:  # which may stand for a number that is not finite
            _check_readable(encoded)
        content = b'%b,"follows":"%b' % (encoded[:-1], follows)
        follows = xxh3_64_hexdigest(content).encode()
        lines.append(b'%b","check":"%b"}\n' % (content, follows))
    return b"".join(lines)


def _check_readable(encoded: bytes) -> None:
    try:
        _decoder.decode(encoded)
    except msgspec.ValidationError as error:
        kind = msgspec.json.decode(encoded)["kind"]
        raise SimulationError(
            f"an event {kind} has a number that is not finite, which events.jsonl cannot hold: "
            f"{error}"
        ) from error


def decode_event(line: bytes) -> AnyEvent:
    """Decode an event from its JSON, without checking the line before.

    Raises:
        msgspec.DecodeError: The line is not an event, or was changed since it was written.
    """
    event = _decoder.decode(line)
    checks, content = checks_of(line), line.rpartition(b'","check":"')[0]
    if checks is None or checks.check != xxh3_64_hexdigest(content).encode():
        raise msgspec.DecodeError("it is not what was written, going by its check")
    return event
