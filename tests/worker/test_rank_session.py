"""Calls that all ranks of a site make: which rank a process is, and what others see of rank 0's."""

import os

import pytest
from serving import worker_info

from flstream.client.fl_model import FLModel
from flstream.client.ranks import RankPlace
from flstream.client.session import Session
from flstream.errors import ClientError
from flstream.worker.messages import SiteTask, Task
from flstream.worker.meta import pack_values
from flstream.worker.ranks import RankStore, RankTurns


def task(number, kind="train"):
    site = SiteTask("site-1", 0, 100 + number)
    meta = pack_values({"lr": 0.5})
    return Task(kind, number, number, 5, {"model": b"secret"}, [site], meta=meta)


@pytest.fixture
def first(tmp_path):
    return RankStore(tmp_path, RankPlace(0, 2), os.getpid())


@pytest.fixture
def other(tmp_path):
    ranks = RankStore(tmp_path, RankPlace(1, 2), os.getpid())
    return Session(RankTurns(ranks, worker_info(tmp_path, "site-1")))


def test_a_rank_follows_the_tasks_of_rank_0_without_their_tensors(first, other, tmp_path):
    with pytest.raises(ClientError, match="init"):
        other.is_running()
    other.init()
    first.publish("receive", False)  # a timeout of rank 0's
    assert other.receive() is None
    first.publish("is_running", True, task(1))
    for call in ("receive", "receive"):
        first.publish(call, True)
    assert other.is_running()
    assert (other.kind, other.context.seed, other.site) == ("train", 101, "site-1")
    model = other.receive()
    assert other.receive() is model
    assert (model.params, model.current_round, model.total_rounds) == ({}, 0, 5)
    assert model.meta == {"lr": 0.5, "site_name": "site-1", "task": "train"}
    first.publish_state(str(tmp_path / "mine"))
    assert other.context.state_dir == tmp_path / "mine"
    first.publish("is_running", True, task(2, "evaluate"))
    for call in ("is_running", "receive"):
        first.publish(call, True)
    assert other.is_running()
    assert (other.kind, other.turn.received) == ("evaluate", None)
    other.log("loss", object())
    other.send(FLModel(params={"w": object()}))
    assert other.kind is None
    assert other.is_running()
    assert other.receive().current_round == 1
    first.publish(None)
    assert [other.is_running(), other.receive(), other.kind] == [False, None, None]
    assert b"secret" not in (tmp_path / "calls").read_bytes()


def test_ranks_that_make_other_calls_than_rank_0_are_told(first, other):
    other.init()
    first.publish("is_running", True, task(1))
    with pytest.raises(ClientError, match=r"rank 1 called receive\(\) where rank 0 called is_run"):
        other.receive()
    assert other.is_running()
    first.publish("is_running", True, task(2))  # without the state
    with pytest.raises(ClientError, match="rank 1 waits for the site's own files, and rank 0 has"):
        _ = other.context.state_dir


@pytest.mark.parametrize("given", [0, "0", "2", "one"])
def test_a_rank_that_is_given_to_init_is_the_launchers(given):
    place = RankPlace(1, 2)
    place.check("1")
    with pytest.raises(ClientError, match=f"given rank {given}, and this process is rank 1 of 2"):
        place.check(given)


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
