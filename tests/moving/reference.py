"""What a job has to come to: its script in a plain process a site, averaged as documented.

Nothing of flstream is in it but the seeds, and the patch of a trainer where a script has one. The
mean is that of docs/aggregation.md: floats are summed in float64, in the sites' order, and rounded
once; integers are averaged as differences from the first site's, halves to even.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flstream.client.seeding import start_seed
from flstream.server.sampling import site_seed

SITES = ("site-1", "site-2")
# Runs a script once, under the stand-in: SEED SCRIPT [ARGUMENT]...
PLAIN_SITE = f"""
import runpy, sys
sys.path.insert(0, {str(Path(__file__).with_name("stand_in"))!r})
import nvflare.client, torch
seed, script = int(sys.argv[1]), sys.argv[2]
sys.argv = sys.argv[2:]
torch.set_num_threads(1)
sys.path.insert(0, script.rpartition("/")[0])
nvflare.client.seed(seed)
runpy.run_path(script, run_name="__main__")
"""


class Reference(NamedTuple):
    """What came of it.

    Attributes:
        params: Tensors of the final model by name.
        received: Metrics that came with the updates of each round, weighted as these are.
        scores: Metrics of each round's model, where sites were asked for them.
        logged: By site, the values that it tracked: their key, number and step.
    """

    params: Mapping[str, torch.Tensor]
    received: Sequence[Mapping[str, float]]
    scores: Sequence[Mapping[str, float]]
    logged: Mapping[str, Sequence[tuple[str, float, int | None]]]


def run_reference(
    folder: Path,
    script: Path,
    args: Sequence[str],
    initial: Mapping[str, Any],
    *,
    seed: int,
    rounds: int,
    evaluates: bool,
) -> Reference:
    """Run a script once for each site, in processes that know nothing of flstream.

    Args:
        folder: Folder in which each site gets a working directory.
        script: The script.
        args: Its arguments.
        initial: Tensors or arrays of the initial model.
        seed: Seed of the job.
        rounds: Number of rounds.
        evaluates: Whether sites score the model of each round.
    """
    params, ends = dict(initial), {}
    found = Reference({}, [], [], {site: [] for site in SITES})

    def ask(kind: str, number: int) -> list[dict[str, Any]]:
        task = {"kind": kind, "round": number, "rounds": rounds, "params": params}
        for site in SITES:
            # As plain bytes: torch would hand over memory, which a process under a test may not.
            seeded = {**task, "seed": site_seed(seed, site, number, kind)}
            ends[site].send_bytes(pickle.dumps(seeded))
        return [pickle.loads(ends[site].recv_bytes()) for site in SITES]

    with Listener(str(folder / "reference.sock")) as listener:
        processes = [_start(folder, script, args, seed, site) for site in SITES]
        try:
            for _ in SITES:
                end = listener.accept()
                ends[pickle.loads(end.recv_bytes())] = end
            for number in range(1, rounds + 1):
                answers = ask("train", number)
                params = {name: _mean(name, value, answers) for name, value in params.items()}
                found.received.append(_metrics(answers))
                for site, answer in zip(SITES, answers, strict=True):
                    found.logged[site].extend(answer["logged"])
                if evaluates:
                    found.scores.append(_metrics(ask("evaluate", number)))
            for end in ends.values():
                end.send_bytes(pickle.dumps(None))
            assert [process.wait(60) for process in processes] == [0] * len(SITES)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return found._replace(params={name: torch.as_tensor(each) for name, each in params.items()})


def _start(
    folder: Path, script: Path, args: Sequence[str], seed: int, site: str
) -> subprocess.Popen[bytes]:
    (folder / site).mkdir()
    command = [sys.executable, "-c", PLAIN_SITE, str(start_seed(seed, site)), str(script), *args]
    places = {"REFERENCE": str(folder / "reference.sock"), "SITE": site, "SEED": str(seed)}
    return subprocess.Popen(command, cwd=folder / site, env={**os.environ, **places})


def _weights(answers: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(answer["meta"].get("NUM_STEPS_CURRENT_ROUND", 1.0)) for answer in answers]


def _metrics(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        name: float(
            np.average([float(x["metrics"][name]) for x in answers], weights=_weights(answers))
        )
        for name in answers[0]["metrics"]
    }


def _mean(name: str, old: Any, answers: Sequence[Mapping[str, Any]]) -> Any:
    base, weights = torch.as_tensor(old), _weights(answers)
    values = [_full(base, answer, name) for answer in answers]
    first = torch.zeros_like(values[0]) if base.is_floating_point() else values[0]
    offsets = [(each - first).double() for each in values]
    mean = sum(w * each for w, each in zip(weights, offsets, strict=True)) / sum(weights)
    result = mean if base.is_floating_point() else first + mean.round().to(base.dtype)
    result = result.to(base.dtype)
    return result.numpy() if isinstance(old, np.ndarray) else result


def _full(base: torch.Tensor, answer: Mapping[str, Any], name: str) -> torch.Tensor:
    """A site's new values, in float64 where they are floats."""
    sent = torch.as_tensor(answer["params"][name])
    sent = sent.double() if sent.is_floating_point() else sent
    return sent if answer["params_type"] == "FULL" else base.double() + sent
