"""A task for several sites: each has as long as if it were alone, and who stalls is named."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flstream.codecs.chain import UpdateForm
from flstream.errors import ChannelClosedError, DeadlineError, WorkerLostError
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.server import task_run as module
from flstream.server.collector import ResultCollector, SiteLost
from flstream.server.task_plan import TaskPlan
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.streaming.service import DownloadService
from flstream.worker.messages import (
    Answered,
    Failed,
    OfferedUpdate,
    Progress,
    SiteAnswer,
    SiteTask,
    Task,
)

LAYOUT = Layout.of([("w", "F32", (4,))])
SECONDS = 10.0
SITES = tuple(f"site-{number}" for number in range(1, 6))
MODEL_BODY = BufferSource(LAYOUT, memoryview(bytes(LAYOUT.nbytes)))
TASK = TaskSpec(
    Task("train", 3, 2, 9),
    MODEL_BODY,
    {site: SiteTask(site, 0, 7) for site in SITES},
    SECONDS,
    lambda _: UpdateForm(MODEL_BODY),
)


class Scripted:
    """A worker that does what a script says, on a clock that only the script moves."""

    name, receiver = "worker-1", "worker-1/1"

    def __init__(self, script) -> None:
        self._script: Iterator = iter(script)
        self.now = 1000.0
        self.control = SimpleNamespace(send=lambda message: None)

    def __call__(self) -> float:
        return self.now

    def next_message(self, deadline, task, key):
        seconds, message = next(self._script)
        if self.now + seconds > deadline:
            self.now = deadline
            raise WorkerLostError(f"it did not {task} in the time it was given") from (
                DeadlineError("no message")
            )
        self.now += seconds
        return message


@pytest.fixture(scope="module")
def service():
    with DownloadService() as service:
        yield service


def give(script, service, monkeypatch):
    """Give it the task: the answer, and the events meanwhile."""
    worker, events = Scripted(script), []
    monkeypatch.setattr(module, "monotonic", worker)
    return ask(service, worker, lambda event, *_: events.append(event)), events


def ask(service, worker, report):
    """Give a worker the task, in as much of a server as that takes."""
    job = SimpleNamespace(streaming=SimpleNamespace(maps=False))
    context = SimpleNamespace(service=service, job=job, picture=None)
    collector = ResultCollector("train", SITES, 0)
    run = TaskRun(context, TASK, TaskPlan(False, 5, False, True, 0), collector)
    return run._ask(worker, SITES, report)


def trained(*sites):
    return Answered(3, [SiteAnswer(site, 1.0, {}, update=OfferedUpdate(b"")) for site in sites])


def turns(seconds):
    """Each site begins when the one before is done; what the last takes is before the answer."""
    before = 0.0
    for site, each in zip(SITES, seconds, strict=True):
        yield before, Progress(3, "turn", site)
        before = each
    yield before, trained(*SITES)


@given(seconds=st.lists(st.floats(0, 2 * SECONDS), min_size=5, max_size=5))
@example(seconds=[0.9 * SECONDS] * 5)
def test_the_first_that_takes_too_long_is_the_one_that_is_named(service, monkeypatch, seconds):
    assume(not any(abs(each - SECONDS) <= 1e-9 for each in seconds))
    late = [site for site, each in zip(SITES, seconds, strict=True) if each > SECONDS]
    if not late:  # together they may take five times what one of them may
        answer, _ = give(turns(seconds), service, monkeypatch)
        assert [each.site for each in answer.sites] == list(SITES)
        return
    with pytest.raises(WorkerLostError) as caught:
        give(turns(seconds), service, monkeypatch)
    assert caught.value.site == late[0]
    assert isinstance(caught.value.__cause__, DeadlineError)


def test_a_site_that_fails_gives_the_next_no_less_time(service, monkeypatch):
    script = [
        (9.0, Progress(3, "turn", "site-1")),
        (9.0, Failed("site-1", 3, "it raised")),
        (0.5, Progress(3, "turn", "site-2")),
        (9.5, trained("site-2", "site-3", "site-4", "site-5")),
    ]
    answer, events = give(script, service, monkeypatch)
    assert [each.site for each in answer.sites] == list(SITES[1:])
    assert (SiteLost("site-1", "it raised"),) in [event.args for event in events]


def test_a_worker_that_ended_before_it_had_its_task_is_heard_to_the_end(service, monkeypatch):
    def closed(message):
        raise ChannelClosedError("worker-1 closed the channel")

    worker = Scripted([(0.0, Failed("", 0, "client.py, line 8 raised KeyError"))])
    worker.control.send = closed
    monkeypatch.setattr(module, "monotonic", worker)
    with pytest.raises(WorkerLostError, match="line 8 raised KeyError") as caught:
        ask(service, worker, lambda *_: None)
    assert not caught.value.is_acknowledged


def test_a_worker_that_is_lost_once_it_has_acknowledged_its_task_is_told_from_one_before(
    service, monkeypatch
):
    script = [
        (0.0, Progress(3, "taken")),
        (0.0, Failed("", 0, "client.py, line 8 raised KeyError")),
    ]
    with pytest.raises(WorkerLostError, match="line 8") as caught:
        give(script, service, monkeypatch)
    assert caught.value.is_acknowledged


def test_nobody_is_named_if_the_worker_stalls_before_the_first_begins(service, monkeypatch):
    with pytest.raises(WorkerLostError) as caught:
        give([(SECONDS + 1, Progress(3, "turn", "site-1"))], service, monkeypatch)
    assert caught.value.site is None
