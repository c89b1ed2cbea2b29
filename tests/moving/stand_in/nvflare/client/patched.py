"""The patches of flstream on the reference's side: the same code, without flstream's client."""

import os
from pathlib import Path
from types import SimpleNamespace

import nvflare.client as plain
from flstream.client import session
from flstream.model.memory import MemoryBody


class PlainSession:
    """What a patch asks of flstream's session, from the reference's pipe."""

    def init(self):
        plain.init()

    def is_running(self):
        return plain.is_running()

    @property
    def kind(self):
        return plain._State.task and plain._State.task["kind"]

    @property
    def context(self):
        state = Path("state")
        state.mkdir(exist_ok=True)
        return SimpleNamespace(seed=plain._State.task["seed"], state_dir=state)

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
