"""Training scripts of the sites of a test, and the results of their runs."""

import os
import signal
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from safetensors.torch import load_file

from flstream.telemetry.events import (
    AnyEvent,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    SitePhaseChanged,
    decode_event,
)
from flstream.telemetry.memory import MemorySampler

# Above the size up to which updates wait in memory, so that they wait in files.
LARGE = "model.args.elements=300000"
QUIET = "workflow.args.evaluate_every=0"

# What a site trains depends on its seed, on the model, and on what it has left in its own folder.
_TRAIN = """
import json
import random

import numpy as np


def train(site, number, params, state, folder):
    with open(f"{folder}/trained.txt", "a") as file:
        file.write(f"{number}\\n")
    momentum = state / "momentum.json"
    value = json.loads(momentum.read_text()) if momentum.exists() else 0.0
    value = 0.5 * value + torch.randn(()).item() + random.random() + np.random.rand()
    momentum.write_text(json.dumps(value))
    for tensor in params.values():
        if tensor.is_floating_point():
            tensor += torch.randn(tensor.shape, dtype=tensor.dtype) + 0.1 * value
    index = int(site.rpartition("-")[2])
    return {"num_examples": index}, {"loss": value}
"""
_SCORES = """
def score(params):
    return {"accuracy": params["w"].double().mean().item()}
"""

# Sends back what it has received, but for what it is told to do to that.
_PLAIN = """
import os, signal, threading
import torch
import flstream.client as flare

%s
flare.init()
site = flare.get_site_name()
while flare.is_running():
    model = flare.receive(%s)
    params, meta, metrics = model.params, {}, {"score": 1.0}
%s
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics=metrics))
        continue
%s
    flare.send(flare.FLModel(%s))
"""

LEARNER = ("train.script=null", "train.learner=client:Sites")


def plain(
    body: str = "",
    *,
    before: str = "",
    receive: str = "",
    first: str = "",
    sends: str = "params=params, meta=meta, metrics=metrics",
) -> str:
    """A loop that sends back what it has received.

    Args:
        body: Done to ``params``, ``meta`` and ``metrics`` of a training.
        before: Comes before the loop.
        receive: Arguments of ``receive``.
        first: Comes before it is looked at what the task is.
        sends: The fields of the answer to a training.
    """
    first, body = (textwrap.indent(textwrap.dedent(code), "    ") for code in (first, body))
    return _PLAIN % (textwrap.dedent(before), receive, first, body, sends)


def drawing() -> str:
    """A loop that adds numbers that the seed decides, to a model of any names."""
    return plain("""
    for tensor in params.values():
        if tensor.is_floating_point():
            tensor += torch.randn(tensor.shape, dtype=tensor.dtype)
    """)


def noisy(body: str = "", *, scores: str = _SCORES, first: str = "") -> str:
    """A loop whose result depends on seeds and state.

    Args:
        body: Comes before the answer to a training.
        scores: Defines ``score(params)``.
        first: Comes before it is looked at what the task is.
    """
    step = """
    folder, number = flare.system_info()["site_dir"], model.current_round + 1
    meta, metrics = train(site, number, params, flare.get_state_dir(), folder)
    """
    step = textwrap.dedent(step) + textwrap.dedent(body)
    first = textwrap.dedent(first) + "\nmetrics = score(params)"
    return plain(step, before=_TRAIN + scores, first=first)


def adding(deeds: Mapping[tuple[str, int], str], accuracy: str = "float(number)") -> str:
    """A loop that adds a site's number to the model, with that as its weight.

    What SCAFFOLD sends beside the model goes back as it came.

    Args:
        deeds: What a site does in a round before it answers.
        accuracy: Expression of the score of a round's ``number``.
    """
    body = "index = int(site[5:])\nmeta['num_examples'] = index\n"
    body += "for tensor in params.values():\n    tensor += index\n"
    body += "if 'control' in model.meta:\n    meta['control'] = model.meta['control']\n"
    for (site, number), deed in deeds.items():
        body += f"if (site, number) == ({site!r}, {number}):\n{textwrap.indent(deed, '    ')}\n"
    first = f"number = model.current_round + 1\nmetrics = {{'accuracy': {accuracy}}}"
    return plain(body, first=first, sends="params=params, meta=meta")


def of_kind(run, kind):
    """The events of one kind, in order."""
    events = map(decode_event, run.directory.events.read_bytes().splitlines())
    return [event for event in events if isinstance(event, kind)]


def trained(run, site: str) -> list[int]:
    """The rounds for which a site of :func:`noisy` has trained, in order."""
    return [int(line) for line in (run.directory.site(site) / "trained.txt").read_text().split()]


def cohorts(run) -> list[Sequence[str]]:
    """Sampled sites of each started round."""
    return [event.sites for event in of_kind(run, RoundStarted)]


def took_part(run) -> dict[int, list[str]]:
    """Sites whose updates are in the model of each round."""
    return {event.round: list(event.weights) for event in of_kind(run, RoundFinished)}


def mean_added(before: Mapping[str, torch.Tensor], sites: Iterable[str]) -> dict[str, torch.Tensor]:
    """The weighted mean of what these sites of :func:`adding` send, summed in float64."""
    numbers = [int(site.rpartition("-")[2]) for site in sites]
    means = {}
    for name, old in before.items():
        total = torch.zeros(old.shape, dtype=torch.float64)
        for number in numbers:
            total += number * (old + number).double()
        mean = total / sum(numbers)
        means[name] = (mean if old.is_floating_point() else mean.round()).to(old.dtype)
    return means


def check_rounds_are_means(run) -> None:
    """Each model is exactly the mean of what those that took part in its round made of the last."""
    for number, sites in took_part(run).items():
        before, after = (load_file(run.directory.checkpoint(n)) for n in (number - 1, number))
        for name, expected in mean_added(before, sites).items():
            assert torch.equal(after[name], expected), f"{name} of round {number}"


def results(run):
    """Results that nothing but the job may decide."""
    summary = run.summary
    assert summary.status == "finished", summary.error
    return summary.model.digest, summary.metrics, summary.best


def kills_site(number: int) -> Callable[[AnyEvent, MemorySampler], None]:
    """A listener that kills all processes of a site's command as it trains in a round."""
    ready: list[ProcessReady] = []

    def listen(event: AnyEvent, sampler: MemorySampler) -> None:
        if isinstance(event, ProcessReady):
            ready.append(event)
        if isinstance(event, SitePhaseChanged) and event.state == "training":
            for pid in [*ready[-1].others, ready[-1].pid] if event.round == number else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    return listen
