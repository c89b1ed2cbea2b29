"""The client's side of a pipe to the reference: tasks come in, answers go out."""

import enum
import os
import pickle
import random
from multiprocessing.connection import Client

import numpy as np


class ParamsType(enum.StrEnum):
    FULL = "FULL"
    DIFF = "DIFF"


class FLModel:
    def __init__(
        self,
        params_type=ParamsType.FULL,
        params=None,
        metrics=None,
        current_round=None,
        total_rounds=None,
        meta=None,
    ):
        self.params_type, self.params, self.metrics = params_type, params, metrics
        self.current_round, self.total_rounds = current_round, total_rounds
        self.meta = meta or {}


class _State:
    pipe = None
    task = None
    received = None
    logged = ()


def seed(number):
    import torch

    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def init(rank=None):
    if _State.pipe is None:
        _State.pipe = Client(os.environ["REFERENCE"])
        _send(get_site_name())


def get_site_name():
    return os.environ["SITE"]


def system_info():
    return {"site_name": get_site_name()}


def is_running():
    if _State.task is None:
        _State.task = pickle.loads(_State.pipe.recv_bytes())
    return _State.task is not None


def receive(timeout=None):
    task = _State.task
    if _State.received is None:
        seed(task["seed"])
        _State.received = FLModel(
            params=task["params"], current_round=task["round"] - 1, total_rounds=task["rounds"]
        )
    return _State.received


def is_evaluate():
    return _State.task["kind"] == "evaluate"


def is_submit_model():
    return False


def send(model):
    _State.task = _State.received = None
    values = {"metrics": model.metrics or {}, "meta": model.meta, "logged": _State.logged}
    _State.logged = ()
    kind = ParamsType(model.params_type).value
    _send({**values, "params": model.params, "params_type": kind})


def log(key, value, global_step=None):
    _State.logged = (*_State.logged, (key, value, global_step))


def _send(value):
    _State.pipe.send_bytes(pickle.dumps(value))
