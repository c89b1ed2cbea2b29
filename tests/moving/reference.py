"""What a job has to come to: its script in a plain process a site, averaged as documented.

Nothing of flstream is in it but the seeds. The mean is that of docs/aggregation.md: floats are
summed in float64, in the sites' order, and rounded once; integers are averaged as differences from
the first site's, halves to even.
"""

import os
import pickle
import subprocess
import sys
from multiprocessing.connection import Listener
from pathlib import Path
from types import SimpleNamespace

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


def run_reference(folder, script, args, initial, *, seed, rounds):
    """Run a script once for each site, in processes that know nothing of flstream.

    Returns ``params`` of the final model, the ``scores`` of each round's, and by site what it has
    tracked, ``logged``.
    """
    params, ends, scores, logged = dict(initial), {}, [], {site: [] for site in SITES}

    def ask(kind, number):
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
                for site, answer in zip(SITES, answers, strict=True):
                    logged[site] += answer["logged"]
                scores.append(_metrics(ask("evaluate", number)))
            for end in ends.values():
                end.send_bytes(pickle.dumps(None))
            assert [process.wait(60) for process in processes] == [0] * len(SITES)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return SimpleNamespace(params=params, scores=scores, logged=logged)


def _start(folder, script, args, seed, site):
    (folder / site).mkdir()
    command = [sys.executable, "-c", PLAIN_SITE, str(start_seed(seed, site)), str(script), *args]
    places = {"REFERENCE": str(folder / "reference.sock"), "SITE": site}
    return subprocess.Popen(command, cwd=folder / site, env={**os.environ, **places})


def _weights(answers):
    return [float(answer["meta"].get("NUM_STEPS_CURRENT_ROUND", 1.0)) for answer in answers]


def _metrics(answers):
    weights, names = _weights(answers), answers[0]["metrics"]
    values = {name: [float(each["metrics"][name]) for each in answers] for name in names}
    return {name: np.average(each, weights=weights) for name, each in values.items()}


def _mean(name, old, answers):
    weights, values = _weights(answers), [answer["params"][name] for answer in answers]
    first = torch.zeros_like(old) if old.is_floating_point() else values[0]
    mean = sum(w * (each - first).double() for w, each in zip(weights, values, strict=True))
    mean /= sum(weights)
    return mean.to(old.dtype) if old.is_floating_point() else first + mean.round().to(old.dtype)
