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
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flstream.client.seeding import start_seed
from flstream.server.sampling import site_seed

SITES = ("site-1", "site-2")


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
    params = dict(initial)
    received, scores = [], []
    logged: dict[str, list[Any]] = {site: [] for site in SITES}
    with Listener(str(folder / "reference.sock")) as listener:
        processes = [_start(folder, script, args, seed, site) for site in SITES]
        try:
            ends = _ends(listener)
            for number in range(1, rounds + 1):
                answers = _ask(ends, "train", params, seed, number, rounds)
                weights = [_weight(answer) for answer in answers]
                params = _mean(params, answers, weights)
                received.append(_metrics(answers, weights))
                for site, answer in zip(SITES, answers, strict=True):
                    logged[site] += answer["logged"]
                if evaluates:
                    found = _ask(ends, "evaluate", params, seed, number, rounds)
                    scores.append(_metrics(found, [_weight(answer) for answer in found]))
            for end in ends.values():
                end.send_bytes(pickle.dumps(None))
            assert [process.wait(60) for process in processes] == [0] * len(SITES)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    tensors = {name: torch.as_tensor(value) for name, value in params.items()}
    return Reference(tensors, received, scores, logged)


def _start(
    folder: Path, script: Path, args: Sequence[str], seed: int, site: str
) -> subprocess.Popen[bytes]:
    work = folder / site
    work.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("plain_site.py"))]
    return subprocess.Popen(
        [*command, str(start_seed(seed, site)), str(script), *args],
        cwd=work,
        env={
            **os.environ,
            "REFERENCE": str(folder / "reference.sock"),
            "SITE": site,
            "SEED": str(seed),
        },
    )


def _ends(listener: Listener) -> dict[str, Connection]:
    found = {}
    for _ in SITES:
        end = listener.accept()
        found[pickle.loads(end.recv_bytes())] = end
    return {site: found[site] for site in SITES}


def _ask(
    ends: Mapping[str, Connection],
    kind: str,
    params: Mapping[str, Any],
    seed: int,
    number: int,
    rounds: int,
) -> list[dict[str, Any]]:
    for site, end in ends.items():
        task_seed = site_seed(seed, site, number, kind)
        task = {"kind": kind, "round": number, "rounds": rounds, "params": params}
        task["seed"] = task_seed
        # As plain bytes: torch would hand over memory, which a process under a test may not.
        end.send_bytes(pickle.dumps(task))
    return [pickle.loads(end.recv_bytes()) for end in ends.values()]


def _weight(answer: Mapping[str, Any]) -> float:
    return float(answer["meta"].get("NUM_STEPS_CURRENT_ROUND", 1.0))


def _metrics(answers: Sequence[Mapping[str, Any]], weights: Sequence[float]) -> dict[str, float]:
    return {
        name: float(
            sum(w * float(each["metrics"][name]) for w, each in zip(weights, answers, strict=True))
            / sum(weights)
        )
        for name in answers[0]["metrics"]
    }


def _mean(
    old: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], weights: Sequence[float]
) -> dict[str, Any]:
    return {
        name: _averaged(value, [_full(value, each, name) for each in answers], weights)
        for name, value in old.items()
    }


def _full(old: Any, answer: Mapping[str, Any], name: str) -> torch.Tensor:
    """A site's new values, in float64 where they are floats."""
    sent = torch.as_tensor(answer["params"][name])
    sent = sent.double() if sent.is_floating_point() else sent
    return sent if answer["params_type"] == "FULL" else torch.as_tensor(old).double() + sent


def _averaged(old: Any, values: Sequence[torch.Tensor], weights: Sequence[float]) -> Any:
    base = torch.as_tensor(old)
    first = values[0]
    offsets = values if base.is_floating_point() else [(each - first).double() for each in values]
    total = sum(w * each for w, each in zip(weights, offsets, strict=True))
    mean = total / sum(weights)
    result = mean.to(base.dtype)
    if not base.is_floating_point():
        result = first + mean.round().to(base.dtype)
    return result.numpy() if isinstance(old, np.ndarray) else result
