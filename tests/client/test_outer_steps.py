"""Segments of inner steps: one loop over all tasks, whatever lies between them."""

import pytest
import torch
from serving import PEER
from training_scripts import of_kind

from flstream.model.memory import MemoryBody
from flstream.telemetry.events import SiteUpdate
from flstream.worker.messages import Answered, Late, TaskParts
from flstream.worker.meta import pack_values

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("count", torch.tensor(0))
        for number, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, (number + 1) / 8)

    def forward(self, points):
        return self.two(nn.functional.dropout(self.one(points).relu(), 0.25))
"""
SCRIPT = """
import random
import sys

import numpy as np
import torch
from model import Net

import flstream.client as flare


class Points:
    def __init__(self):
        self.place = flare.system_info()["site_index"]

    def __next__(self):
        self.place += 1
        noise = random.random() + np.random.rand()
        return torch.arange(self.place, self.place + 6.0).reshape(2, 3) / 8 + noise

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


flare.init()
net, points = Net(), Points()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
inner_steps = int(sys.argv[-1]) if sys.argv[1:] else None
steps = flare.outer_steps(net, optimizer, inner_steps=inner_steps, schedule=schedule, data=points)
print("a loop begins")
for step in steps:
    loss = net(next(points)).square().mean()
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    net.count += 1
    steps.report(loss=loss, step=step)
    print("step", step)
"""
HOW = ('model.factory="model:Net"',)


def inner(count):
    return f"train.args={{steps={count}}}"


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_segments_of_a_site_come_to_what_one_loop_does(jobs, engine):
    how = (*HOW, "clients.count=1", f"engine.type={engine}")
    whole = jobs.run(SCRIPT, *how, "rounds=1", inner(6), model=MODEL).finished()
    parts = jobs.run(SCRIPT, *how, "rounds=3", inner(2), model=MODEL).finished()
    assert parts.summary.model.digest == whole.summary.model.digest
    assert [event.metrics["step"] for event in of_kind(parts, SiteUpdate)] == [0.5, 2.5, 4.5]


@pytest.mark.usefixtures("processes")
def test_sites_that_share_workers_come_to_the_same_and_print_what_they_begin_with(jobs):
    how = (*HOW, "clients.count=3", "rounds=2", inner(2))
    own = jobs.run(SCRIPT, *how, model=MODEL).finished()
    shared = jobs.run(SCRIPT, *how, "clients.parallel=2", model=MODEL).finished()
    assert shared.summary.model.digest == own.summary.model.digest
    logs = [path.read_text() for path in own.directory.path.glob("sites/*/log.txt")]
    assert [text.count("a loop begins") for text in logs] == [1, 1, 1]
    assert not any("no state" in text for text in logs)


# Adds the number of each step to what it trains; a momentum tells fresh moments from others.
PARTS = """
import torch
import flstream.client as flare


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))


flare.init()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
steps = flare.outer_steps(net, optimizer, EXTRA)
for step in steps:
    net.a.grad, net.b.grad = -torch.ones(3), -torch.ones(3)
    optimizer.step()
    steps.report(step=step)
"""


class Parts:
    """Tasks of one site, with parts of the model."""

    def __init__(self, serving):
        self.server = serving.server

    def train(self, number, received, send=("a", "b"), late=None, **meta):
        """The update of a segment, and the whole answer."""
        parts = TaskParts([*send], {}, is_whole=len(received) == 2, is_late=late is not None)
        self._ask("train", number, received, {"inner_steps": 1, **meta}, parts=parts)
        if late is not None:
            ref = self.server.service.offer(MemoryBody.of(late), [PEER])
            self.server.control.send(Late(number, ref.token))
        answer = self.server.hear(Answered)
        sent = self.server.fetch(answer)
        return {name: value[0].item() for name, value in sent.items()}, answer.sites[0]

    def failure(self, kind, number, received, **meta):
        """The reason of a task that fails."""
        self._ask(kind, number, received, meta)
        self.server.hear(Answered)  # of no site
        [(_, _, reason)] = self.server.failures()
        return reason

    def _ask(self, kind, number, received, meta, **more):
        params = {name: torch.full((3,), float(value)) for name, value in received.items()}
        meta = pack_values(meta)
        self.server.ask(kind, params, "site-1", round_number=number, meta=meta, **more)


@pytest.mark.parametrize("site", ["site-1", None])
def test_a_segment_receives_and_sends_parts_and_keeps_the_rest_at_the_site(script, site):
    with script(PARTS.replace("EXTRA", ""), site=site) as serving:
        parts = Parts(serving)
        sent, answer = parts.train(1, {"a": 10, "b": 20}, send=["a"])
        assert (sent, answer.metrics) == ({"a": 11}, {"step": 0})
        # The momentum of a step of 1 adds a half of it, and so on.
        sent, answer = parts.train(2, {"a": 100}, send=["b"], inner_steps=2)
        assert (sent, answer.metrics) == ({"b": 21 + 1.5 + 1.75}, {"step": 1.5})
        sent, answer = parts.train(3, {"b": 50}, send=["b"])
        assert sent == {"b": 50 + 1.875}
        assert (
            parts.train(4, {"b": 0}, send=["a", "b"])[0]["a"] == 100 + 1.5 + 1.75 + 1.875 + 1.9375
        )


def test_a_site_without_a_state_needs_the_whole_model_and_says_so(script, capfd):
    with script(PARTS.replace("EXTRA", "")) as serving:
        parts = Parts(serving)
        reason = parts.failure("train", 2, {"a": 1}, inner_steps=1)
        assert "no state of an earlier segment, and tensor 'b' was not received" in reason
        assert parts.train(3, {"a": 1, "b": 1})[0] == {"a": 2, "b": 2}
    assert "with new moments" in capfd.readouterr().out


def test_an_optimizer_that_is_to_be_reset_begins_each_segment_anew(script):
    with script(PARTS.replace("EXTRA", ""), optimizer_state="reset") as serving:
        parts = Parts(serving)
        for number in (1, 2):
            assert parts.train(number, {"a": 1, "b": 1})[0] == {"a": 2, "b": 2}


EVALUATE = "evaluate=lambda net: {'a': net.a.sum(), 'training': net.training}"


@pytest.mark.parametrize("site", ["site-1", None])
def test_an_evaluation_is_answered_by_a_function_and_changes_nothing(script, site):
    with script(PARTS.replace("EXTRA", EVALUATE), site=site) as serving:
        parts = Parts(serving)
        parts.train(1, {"a": 10, "b": 20}, send=["a"])
        params = {name: torch.full((3,), 4.0) for name in ("a", "b")}
        answer = serving.server.evaluate(params, "site-1", round_number=1).sites[0]
        assert answer.metrics == {"a": 12, "training": 0}
        assert answer.asks == ["evaluate"]
        assert parts.train(2, {"a": 0}, send=["b"])[0] == {"b": 21 + 1.5}


MISTAKES = [
    ("train", {"a": 1, "b": 1, "c": 1}, {"inner_steps": 1}, "tensor 'c' was received, and the mod"),
    ("train", {"a": 1, "b": 1}, {}, "the workflow sends no meta['inner_steps']"),
    ("train", {"a": 1, "b": 1}, {"inner_steps": 0}, "inner_steps is 0; a segment has"),
    ("evaluate", {"a": 1, "b": 1}, {}, "give outer_steps() the argument evaluate"),
]


@pytest.mark.parametrize(("kind", "received", "meta", "sentence"), MISTAKES)
def test_a_task_that_a_loop_cannot_take_fails_with_a_sentence(
    script, kind, received, meta, sentence
):
    with script(PARTS.replace("EXTRA", "")) as serving:
        assert sentence in Parts(serving).failure(kind, 1, received, **meta)


ARGUMENTS = [
    ("schedule=3", "outer_steps(schedule=...) was given a int"),
    ("data=Odd()", "more than tensors and plain values"),
]
ODD = """
class Odd:
    def state_dict(self):
        return {"odd": self}

    def load_state_dict(self, state):
        pass


flare.init()
"""


@pytest.mark.parametrize(("argument", "sentence"), ARGUMENTS)
def test_an_object_that_cannot_go_on_is_refused(script, argument, sentence):
    text = PARTS.replace("flare.init()", ODD).replace("EXTRA", argument)
    with script(text) as serving:
        reason = Parts(serving).failure("train", 1, {"a": 1, "b": 1}, inner_steps=1)
    assert sentence in reason


def test_ranks_are_refused_by_name(script):
    with script(PARTS.replace("EXTRA", "").replace("steps = ", RANKS)) as serving:
        reason = Parts(serving).failure("train", 1, {"a": 1, "b": 1}, inner_steps=1)
    assert "train.command starts 2 for this site" in reason


# As a command with two ranks would have it.
RANKS = """
from flstream.client.ranks import RankPlace
from flstream.client.session import current

current().turns.place = RankPlace(0, 2)
steps = """


@pytest.mark.parametrize(("late_step", "blended"), [(1, 50.5 + 1.5), (2, 51.25)])
def test_late_tensors_are_blended_in_before_their_step_or_at_the_end(script, late_step, blended):
    with script(PARTS.replace("EXTRA", "")) as serving:
        meta = {"inner_steps": 2, "late_step": late_step, "alpha": 0.5}
        late = {"b": torch.full((3,), 100.0)}
        sent, _ = Parts(serving).train(1, {"a": 0, "b": 0}, late=late, **meta)
    assert sent == {"a": 2.5, "b": blended}
