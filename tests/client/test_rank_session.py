"""Ranks of a site: rank 0 says what it does, and the others follow it, whoever is faster."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving import PEER, worker_info

from flstream.client.fl_model import FLModel
from flstream.client.messages import SiteTask, Task, TaskKind
from flstream.client.meta import pack_values
from flstream.client.rank_link import SOCKET, TOKEN, Announcer, RankLink, RankPlace
from flstream.client.rank_messages import (
    AskedAgain,
    FromRank,
    RankHello,
    RankJoined,
    RunOver,
    SiteVerdict,
    StateReady,
    TaskBegun,
)
from flstream.client.rank_session import RankSession
from flstream.errors import ClientError
from flstream.transport.messages import MessageChannel
from flstream.transport.sockets import SocketChannel

Worker = MessageChannel[FromRank]


def task(number: int, kind: TaskKind = "train") -> Task:
    sent = pack_values({"lr": 0.5})
    sites = [SiteTask("site-1", 0, 100 + number)]
    return Task(kind, number, number, 5, {"model": b"secret"}, 1 << 20, sites, meta=sent)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Worker]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, MessageChannel(SocketChannel(ours, PEER), PEER, FromRank)


@pytest.fixture
def worker(ends: tuple[socket.socket, Worker]) -> Worker:
    return ends[1]


@pytest.fixture
def session(ends: tuple[socket.socket, Worker], tmp_path: Path) -> RankSession:
    session = RankSession(RankLink(ends[0], RankPlace(1, 2)), worker_info(tmp_path, "site-1"))
    session.init()
    return session


def begin(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_a_rank_follows_the_tasks_of_rank_0_without_their_tensors(session, worker):
    worker.send(TaskBegun(task(1)), TaskBegun(task(2, "evaluate")), TaskBegun(task(3)), RunOver())
    assert session.kind is None
    assert session.is_running()
    assert (session.kind, session.task_seed, session.site) == ("train", 101, "site-1")
    model = session.receive()
    assert (model.params, model.current_round, model.total_rounds) == ({}, 0, 5)
    assert model.meta == {"lr": 0.5, "site_name": "site-1", "task": "train"}
    drawn = random.random()
    random.seed(101)  # as in all ranks
    assert drawn == random.random()
    # A turn of the loop ends with the next question, or with send.
    assert session.is_running()
    assert session.kind == "evaluate"
    session.send(FLModel(metrics={}))
    assert session.kind is None
    assert session.is_running()
    assert session.receive().current_round == 2
    assert not session.is_running()
    assert session.kind is session.receive() is None


@pytest.mark.parametrize("call", ["is_running", "receive"])
def test_a_repeated_call_waits_until_rank_0_has_repeated_it(session, worker, call):
    worker.send(TaskBegun(task(1)))
    answers = [getattr(session, call)()]
    thread = begin(lambda: answers.append(getattr(session, call)()))
    worker.send(AskedAgain(call))
    thread.join(20)
    assert answers[0] is answers[1]
    # What rank 0 alone repeats is of no account in the next task, nor where nothing is sent.
    worker.send(AskedAgain("receive"), TaskBegun(task(2)), TaskBegun(task(3)), RunOver())
    rounds = []
    while session.is_running() and (model := session.receive()) is not None:
        rounds.append(model.current_round)
    assert rounds[-2:] == [1, 2]


def test_a_patch_waits_for_a_task_without_a_turn_of_the_loop(session, worker):
    assert session.receive(timeout=0.01) is None
    worker.send(TaskBegun(task(1)))
    assert session.await_task()
    assert session.await_task()
    assert session.is_running()
    worker.send(RunOver())
    session.send(FLModel())
    assert not session.await_task()


def test_the_sites_files_are_where_rank_0_has_laid_them_out(session, worker, tmp_path):
    with pytest.raises(ClientError, match="there is no task"):
        _ = session.state_dir
    worker.send(TaskBegun(task(1)), StateReady(str(tmp_path)))
    session.receive()
    assert session.state_dir == session.state_dir == tmp_path
    assert session.system_info()["state_dir"] == str(tmp_path)
    worker.send(TaskBegun(task(2)), TaskBegun(task(3)))
    session.is_running()
    session.is_running()
    with pytest.raises(ClientError, match="call get_state_dir\\(\\) in all ranks"):
        _ = session.state_dir


def test_a_rank_sends_nothing_and_ends_with_its_worker_or_by_itself(session, worker, ends):
    worker.send(TaskBegun(task(1)), TaskBegun(task(2)))
    session.receive()
    session.log("loss", object())
    session.clear()
    session.send(FLModel(params={"w": object()}))
    assert not worker.has_input()
    session.shutdown()
    assert not session.is_running()


def test_a_worker_process_that_is_gone_ends_the_loop(session, ends):
    ends[1].close()
    assert not session.is_running()


@pytest.mark.parametrize("given", [0, "0", "2", "one"])
def test_a_rank_that_is_given_to_init_is_the_launchers(session, ends, tmp_path, given):
    session.init(1)
    session.init("1")
    with pytest.raises(ClientError, match=f"given rank {given}, and this process is rank 1 of 2"):
        session.init(given)
    other = RankSession(RankLink(ends[0], RankPlace(1, 2)), worker_info(tmp_path, "site-1"))
    with pytest.raises(ClientError, match="init"):
        other.is_running()


def test_rank_0_announces_a_task_once_and_not_its_tokens(ends, worker, tmp_path):
    announcer = Announcer(RankLink(ends[0], RankPlace(0, 2)), [7])
    announcer.begun(task(1))
    announcer.called("is_running")
    announcer.called("receive")
    announcer.state_ready(tmp_path)
    announcer.state_ready(tmp_path)
    announcer.called("receive")
    announcer.begun(task(2))
    announcer.called("is_running")
    announcer.over()
    announcer.over()
    first, *rest = [worker.receive(5) for _ in range(5)]
    assert first.task.bodies == {}
    assert first.task.sites == task(1).sites
    assert rest[0:2] == [StateReady(str(tmp_path)), AskedAgain("receive")]
    assert (rest[2].task.round, rest[3]) == (2, RunOver())
    # It knows who has connected, why the site has failed, and does without who is gone.
    worker.send(RankJoined(8))
    assert announcer.pids() == [7, 8]
    worker.send(RankJoined(9), SiteVerdict("rank 1: it is ill"))
    assert announcer.settle("it has no neighbour") == "rank 1: it is ill"
    assert worker.receive(5).failure == "it has no neighbour"
    worker.close()
    assert announcer.settle("it is ill") == "it is ill"
    assert announcer.settle(None) is None


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        ({"RANK": "1"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}, (2, 3)),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "2"}, (0, 1)),
        ({"RANK": "-1"}, (0, 1)),
    ],
)
def test_launchers_say_which_rank_a_process_is(variables, place):
    assert RankPlace.of(variables) == place


def test_a_process_connects_by_what_its_environment_has_and_keeps_none_of_it(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "ranks"))
        listener.listen()
        variables = {SOCKET: str(tmp_path / "ranks"), TOKEN: "known", "RANK": "1"}
        link = RankLink.connect(variables)
        assert variables == {"RANK": "1"}
        with listener.accept()[0] as sock, link.socket:
            channel: Worker = MessageChannel(SocketChannel(sock, PEER), PEER, FromRank)
            hello = channel.receive(5)
            assert isinstance(hello, RankHello)
            assert (hello.token, hello.rank) == ("known", 1)
    with pytest.raises(ClientError, match="there is no site to run the script for"):
        RankLink.connect({SOCKET: str(tmp_path / "none")})
