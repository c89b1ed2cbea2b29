"""Ranks of a site: which one a process is, and what passes between them; test_command runs some."""

import socket

import pytest
from serving import PEER, worker_info

from flstream.client.fl_model import FLModel
from flstream.client.messages import SiteTask, Task
from flstream.client.meta import pack_values
from flstream.client.rank_link import SOCKET, TOKEN, Announcer, RankLink, RankPlace
from flstream.client.rank_messages import FromRank, RankHello, RunOver, SiteVerdict, TaskBegun
from flstream.client.rank_session import RankSession
from flstream.errors import ClientError
from flstream.transport.messages import MessageChannel
from flstream.transport.sockets import SocketChannel


def task(number, kind="train"):
    site = SiteTask("site-1", 0, 100 + number)
    meta = pack_values({"lr": 0.5})
    return Task(kind, number, number, 5, {"model": b"secret"}, [site], meta=meta)


@pytest.fixture
def ends():
    """The socket of a rank, and the channel of the worker's process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, MessageChannel(SocketChannel(ours, PEER), PEER, FromRank)


def test_a_rank_follows_the_tasks_of_rank_0_without_their_tensors(ends, tmp_path):
    session = RankSession(RankLink(ends[0], RankPlace(1, 2)), worker_info(tmp_path, "site-1"))
    with pytest.raises(ClientError, match="init"):
        session.is_running()
    session.init()
    assert session.receive(timeout=0.01) is None
    worker = ends[1]
    worker.send(TaskBegun(task(1)), TaskBegun(task(2, "evaluate")), TaskBegun(task(3)))
    assert session.is_running()
    assert (session.kind, session.task_seed, session.site) == ("train", 101, "site-1")
    model = session.receive()
    assert (model.params, model.current_round, model.total_rounds) == ({}, 0, 5)
    assert model.meta == {"lr": 0.5, "site_name": "site-1", "task": "train"}
    # A turn of the loop ends with the next question, or with send, which sends nothing.
    assert session.is_running()
    assert session.kind == "evaluate"
    session.log("loss", object())
    session.send(FLModel(params={"w": object()}))
    assert not worker.has_input()
    assert session.await_task()  # as a patch does, without a turn of the loop
    assert session.is_running()
    assert session.receive().current_round == 2
    worker.close()  # as where the worker's process is gone
    assert not session.is_running()


@pytest.mark.parametrize("given", [0, "0", "2", "one"])
def test_a_rank_that_is_given_to_init_is_the_launchers(given):
    place = RankPlace(1, 2)
    place.check("1")
    with pytest.raises(ClientError, match=f"given rank {given}, and this process is rank 1 of 2"):
        place.check(given)


def test_rank_0_announces_a_task_without_its_tokens_and_hears_why_a_site_has_failed(ends):
    announcer, worker = Announcer(RankLink(ends[0], RankPlace(0, 2)), [7]), ends[1]
    announcer.begun(task(1))
    announcer.over()
    announcer.over()
    begun = worker.receive(5)
    assert (begun.task.bodies, begun.task.sites) == ({}, task(1).sites)
    assert worker.receive(5) == RunOver()
    assert not worker.has_input()
    worker.send(SiteVerdict("rank 1: it is ill"))
    assert announcer.settle("it has no neighbour") == "rank 1: it is ill"


PLACES = {
    (0, 1): [{}, {"RANK": "-1"}, {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "2"}],
    (3, 4): [{"RANK": "3", "WORLD_SIZE": "4"}],
    (1, 2): [{"RANK": "1"}, {"PMI_RANK": "1", "PMI_SIZE": "2"}],
    (0, 2): [{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}],
    (2, 3): [{"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}],
}


def test_launchers_say_which_rank_a_process_is():
    for place, settings in PLACES.items():
        assert [RankPlace.of(variables) for variables in settings] == [place] * len(settings)


def test_a_process_connects_by_what_its_environment_has_and_keeps_none_of_it(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "ranks"))
        listener.listen()
        variables = {SOCKET: str(tmp_path / "ranks"), TOKEN: "known", "RANK": "1"}
        link = RankLink.connect(variables)
        assert variables == {"RANK": "1"}
        with listener.accept()[0] as sock, link.socket:
            channel = MessageChannel(SocketChannel(sock, PEER), PEER, FromRank)
            hello = channel.receive(5)
            assert isinstance(hello, RankHello)
            assert (hello.token, hello.rank) == ("known", 1)
    with pytest.raises(ClientError, match="there is no site to run the script for"):
        RankLink.connect({SOCKET: str(tmp_path / "none")})
