"""The client's side of a pipe to the reference: tasks come in, answers go out."""

import os
import pickle
import random
from dataclasses import dataclass, field
from multiprocessing.connection import Client

import numpy as np
import torch


@dataclass
class FLModel:
    params: dict | None = None
    metrics: dict | None = None
    current_round: int | None = None
    total_rounds: int | None = None
    meta: dict = field(default_factory=dict)


class _State:
    pipe = task = received = None
    logged = ()


def seed(number):
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def init():
    if _State.pipe is None:
        _State.pipe = Client(os.environ["REFERENCE"])
        _send(get_site_name())


def get_site_name():
    return os.environ["SITE"]


def is_running():
    if _State.task is None:
        _State.task = pickle.loads(_State.pipe.recv_bytes())
    return _State.task is not None


def receive():
    task = _State.task
    if _State.received is None:
        seed(task["seed"])
        place = {"current_round": task["round"] - 1, "total_rounds": task["rounds"]}
        _State.received = FLModel(params=task["params"], **place)
    return _State.received


def is_evaluate():
    return _State.task["kind"] == "evaluate"


def send(model):
    answer = {"params": model.params, "meta": model.meta, "metrics": model.metrics or {}}
    _send({**answer, "logged": _State.logged})
    _State.task = _State.received = None
    _State.logged = ()


def log(key, value, global_step=None):
    _State.logged = (*_State.logged, (key, value, global_step))


def _send(value):
    _State.pipe.send_bytes(pickle.dumps(value))
