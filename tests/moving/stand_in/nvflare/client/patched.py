"""The patches of flstream on the reference's side: the same code, without flstream's client."""

import os
from pathlib import Path

import nvflare.client as plain
from flstream.client import session
from flstream.client.rank_link import RankPlace
from flstream.model.memory import MemoryBody


class PlainSession:
    """What a patch asks of flstream's session, from the reference's pipe."""

    place = RankPlace()
    optimizer_state = None
    received = None

    def init(self):
        plain.init()

    def await_task(self):
        return plain.is_running()

    @property
    def kind(self):
        return plain._State.task and plain._State.task["kind"]

    @property
    def task_seed(self):
        return plain._State.task["seed"]

    @property
    def state_dir(self):
        state = Path("state")
        state.mkdir(exist_ok=True)
        return state

    site = plain.get_site_name()

    def constants(self):
        return {"seed": int(os.environ["SEED"])}

    def receive(self, timeout=None, place=None):
        is_new = plain._State.received is None
        model = plain.receive()
        into = place(MemoryBody.of(model.params).layout) if is_new else None
        for name, tensor in (into or {}).items():
            tensor.copy_(model.params[name])
        return model

    def send(self, model):
        plain.send(model)


session.enter(PlainSession())
