"""Messages between the server and a worker: tasks, progress and answers.

They travel on a channel of their own, beside the two that carry bodies::

    server                 worker
                           Ready                     once, and again after a script's imports
    Task             ->
                     <-    Progress "taken"          from here on, failures are the sites'
                     <-    Progress "host lost"      each time a peer does not deliver the model,
    Task             ->                              whereupon the task is sent again
                     <-    Progress "received"       the model has arrived
    Late             ->                              in a training with late tensors, once
                     <-    Progress "late"           they have arrived
                     <-    Progress "turn"           at the turn of each of several sites
                     <-    Progress "declared"       where training code declares its work
                     <-    Logged, Failed            as they happen
                     <-    Answered                  once, also where every site has failed
    Stop             ->
                     <-    Stop

Each site of a task is either in the worker's answer or in one ``Failed``. A process whose script
has raised ends with ``Failed`` and ``Stop`` instead. A worker that is lost before it has taken
its task has failed nobody: the task is given again.

After ``Answered`` the server reads nothing more until it has the next task for the worker, or stops
it. So what is to count for a task is sent before that. Whoever reads a message may not know the
round: a message that belongs to one carries its number, as ``Logged`` does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flstream.runs.results import StateVersion
from flstream.telemetry.events import Transfer

TaskKind = Literal["train", "evaluate", "submit_model"]

EVALUATE: Literal["evaluate"] = "evaluate"
"""The task to score a model."""

SUBMIT_MODEL: Literal["submit_model"] = "submit_model"
"""The task to send a model of the site's own. It comes without a model."""

LEAST_WEIGHT, MOST_WEIGHT = 1e-15, 1e15
"""The weights that an answer may have.

Up to the largest, a number of examples is exact in float64. A sum of a million of them is finite,
and so is that of their products with values of any type but float64.
"""


def is_weight(weight: float) -> bool:
    """Return whether a number may be the weight of an answer; NaN may not."""
    return LEAST_WEIGHT <= weight <= MOST_WEIGHT


class TaskDeadline(msgspec.Struct, frozen=True):
    """Time that a site may train for.

    Attributes:
        seconds: Seconds: of the site's own device, or on the wall.
        examples: Examples, or declared units, that its device can do in them; None on the wall.
    """

    seconds: float
    examples: float | None = None


class SiteTask(msgspec.Struct, frozen=True):
    """One site's part of a task.

    Attributes:
        site: Name of the site.
        index: Its place among all sites, from 0.
        seed: Seed of its random numbers during the task, 63 bits.
        state: Version of its own files to begin with; None for an empty folder.
        deadline: Time that it may train for; None for no limit.
        effect: Number of the effect that started it, where that is not the task's; else 0.
    """

    site: str
    index: int
    seed: int
    state: StateVersion | None = None
    deadline: TaskDeadline | None = None
    effect: int = 0


class Offered(msgspec.Struct, tag=True, frozen=True):
    """Worker: a body is on offer to a peer, which connects for it.

    Attributes:
        peer: Name of this worker, which is the other's peer.
        address: Where it listens.
        key: The key of the start token that admits the other one.
        token: The body's token.
    """

    peer: str
    address: str
    key: bytes
    token: bytes


class TaskParts(msgspec.Struct, frozen=True):
    """Tensors that the site of a training receives and sends back, where these are not all.

    Attributes:
        send: Names of those that it sends back.
        ties: Their names by their further names.
        is_whole: Whether it receives all tensors.
        are_changes: Whether what it receives are changes of what it has.
        is_late: Whether it receives further ones while it trains.
    """

    send: list[str]
    ties: dict[str, str]
    is_whole: bool = True
    are_changes: bool = False
    is_late: bool = False


class Task(msgspec.Struct, tag=True, frozen=True):
    """Server: fetch the model, once, and train or evaluate it at sites in turn.

    A task to submit a model comes with none.

    Attributes:
        kind: Kind of the task.
        effect: Number of the workflow's effect that asks for it.
        round: Number of the round, from 1.
        total_rounds: Rounds of the job.
        token: Token of the model on offer; empty without one.
        model: Name of the model, its digest, by which both sides know that they have it.
        sites: One or more. With more than one, each works on a copy of the model, so this is for
            models that are small.
        keeps_state: Whether what the sites leave in their state is kept. A task that is repeated
            for the sake of its updates has kept it already.
        oldest: Number of the earliest effect that the run may go back to, of whose sites' states
            nothing is removed.
        meta: Payload message of the values that the workflow sends along; empty for none.
        order: Order in which training code is to find the tensors; see
            :mod:`flstream.model.order`.
        joined: Names of the bodies that are joined with the model into one, and with the update
            that is to be sent; see :mod:`flstream.model.joined`.
        host: The peer's offer of the model; None where the server offers it.
        folder: Folder in which the worker writes the update as a file; empty for none.
        inline: Most bytes of an update that travels in the answer; 0 where none does.
        mapped: Whether the descriptor of the model's checkpoint was handed over, so that the model
            is mapped instead of fetched.
        parts: The tensors that travel; None for all.
        needs_update: Whether a site of a training has to send tensors.
        own_meta: By site, such a payload message in the place of ``meta``, where each has its own.
        base: Path of the base that the model is an adapter of; empty for that of the job.
    """

    kind: TaskKind
    effect: int
    round: int
    total_rounds: int
    token: bytes = b""
    sites: list[SiteTask] = []
    keeps_state: bool = True
    oldest: int = 0
    meta: bytes = b""
    order: str = ""
    joined: list[str] = []
    host: Offered | None = None
    folder: str = ""
    inline: int = 0
    model: str = ""
    mapped: bool = False
    parts: TaskParts | None = None
    needs_update: bool = True
    own_meta: dict[str, bytes] = {}
    base: str = ""

    def meta_of(self, site: str) -> bytes:
        """Return the payload message of the values that are sent to a site."""
        return self.own_meta.get(site, self.meta)


class Late(msgspec.Struct, tag=True, frozen=True):
    """Server: further tensors of a training under way are on offer.

    Attributes:
        effect: Number of the effect that started the training.
        token: Token of the tensors on offer.
        are_changes: Whether they are changes of what the site has.
    """

    effect: int
    token: bytes
    are_changes: bool = False


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Server: there is nothing more to do. Worker: the process ends.

    Attributes:
        peak_rss: Peak RSS of the worker's process, in bytes; 0 from the server.
    """

    peak_rss: int = 0


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Worker: the process has done its imports, and waits for tasks.

    Attributes:
        pid: Pid of the process in which the training code has the tasks.
        idle_rss: RSS of all of the worker's processes, in bytes.
        others: Pids of the worker's other processes; none where there is one alone.
    """

    pid: int
    idle_rss: int
    others: list[int] = []


class Progress(msgspec.Struct, tag=True, frozen=True):
    """Worker: a step of its task is done.

    Attributes:
        effect: Number of the task's effect.
        step: ``taken``: what goes wrong from here on is the sites'. ``host lost``: the peer that
            offers the model is gone, and the task is to be sent with another one. ``received``: the
            model has arrived. ``late``: so have tensors that came while it trained. ``turn``: a
            site's turn begins, in a task for several. ``declared``: its training code has said how
            much work it does.
        site: Whose turn begins, or who has declared its work.
        cost: Cost of fetching what was received.
        waited: Seconds that training has waited for it.
        units: Units of work that were declared.
    """

    effect: int
    step: Literal["taken", "host lost", "received", "late", "turn", "declared"]
    site: str = ""
    cost: Transfer = Transfer()
    waited: float = 0.0
    units: float = 0.0


class OfferedUpdate(msgspec.Struct, tag=True, frozen=True):
    """Update that stays in the worker, on offer until the server settles it.

    Attributes:
        token: Token of its body.
    """

    token: bytes


class InlineUpdate(msgspec.Struct, tag=True, frozen=True):
    """Small update that travels in its site's answer.

    Attributes:
        header: Its safetensors header, without the length.
        body: Its bytes.
        digest: Digest of both.
    """

    header: bytes
    body: bytes
    digest: str


class WrittenUpdate(msgspec.Struct, tag=True, frozen=True):
    """Update in a file that the worker has written in the task's folder.

    Attributes:
        digest: Digest of its body.
        cost: Its bytes, and the seconds that it took.
    """

    digest: str
    cost: Transfer


class SiteAnswer(msgspec.Struct, frozen=True):
    """Answer of one site to a task.

    Attributes:
        site: Name of the site.
        weight: Its share in a mean, before dividing by the sum of all; see :func:`is_weight`.
        metrics: Numbers by name, of the model that it received or of its training.
        params_type: Whether the body has the weights or their difference from the model.
        framework: Library of the tensors that the body was made of.
        partial: Whether the body may lack tensors of the model.
        has_params: Whether the site sent a model, also where only metrics were asked for; not if
            its code does not know of the task to submit one.
        state: Version of its own files after the task; None where it has kept none in it.
        meta: Payload message of the values that it sent along; empty for none.
        unread: Names of what the workflow sent along for its training, and its code has not read.
        asks: Kinds of task that its code told from trainings during the task.
        update: Where its update is; None where it has sent none, and once the server has it.
        nbytes: Bytes of its update's tensors in the form in which they travel.
        units: Units of work that its code has declared; None where it has not.
        seconds: Seconds from the model's arrival to the answer.
    """

    site: str
    weight: float
    metrics: dict[str, float]
    params_type: Literal["FULL", "DIFF"] = "FULL"
    framework: Literal["pytorch", "numpy"] = "pytorch"
    partial: bool = False
    has_params: bool = False
    state: StateVersion | None = None
    meta: bytes = b""
    unread: list[str] = []
    asks: list[str] = []
    update: OfferedUpdate | InlineUpdate | WrittenUpdate | None = None
    nbytes: int = 0
    units: float | None = None
    seconds: float = 0.0


class Answered(msgspec.Struct, tag=True, frozen=True):
    """Worker: the answers of these sites.

    Attributes:
        effect: Number of the effect whose task is answered.
        sites: In the order of the task. Of several, updates are inline.
    """

    effect: int
    sites: list[SiteAnswer]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Worker: a site has failed in a task.

    Attributes:
        site: Name of the site; empty where the process itself cannot go on.
        effect: Number of the task's effect; 0 where the process itself cannot go on.
        reason: One sentence that says why.
        exit_code: Status with which the training code ended its process, or minus the signal that
            killed it; None if it did not end so.
        has_died: Whether a process has ended without an error of the training code. Before the
            first task another process may do better.
    """

    site: str
    effect: int
    reason: str
    exit_code: int | None = None
    has_died: bool = False


class Logged(msgspec.Struct, tag=True, frozen=True):
    """Worker: a site logged a value.

    Attributes:
        round: Round of its task; 0 before the first one.
        site: Name of the site.
        key: Name of the value.
        value: The number; None for text.
        step: Step of the site's own, such as a count of batches; None where it gave none.
        text: The text; None for a number.
    """

    round: int
    site: str
    key: str
    value: float | None
    step: int | None = None
    text: str | None = None


ToWorker = Task | Late | Stop
FromWorker = Ready | Progress | Logged | Failed | Answered | Stop
