"""The table's first row is what plain torch makes of its job: seeds, training, mean and score."""

import random
import runpy
from fractions import Fraction

import numpy as np
import torch
from matrix_runs import JOB, WIDTHS, recorded

from flstream.job import load_job
from flstream.model.digests import body_digest
from flstream.model.memory import MemoryBody
from flstream.server.sampling import site_seed

WEIGHTS = (3, 4, 5, 6)


def mean_of(name, states):
    """Floats are summed in float64 and rounded once; whole numbers are exact, halves to even."""
    values = [state[name] for state in states]
    if values[0].is_floating_point():
        pairs = zip(WEIGHTS, values, strict=True)
        total = sum(weight * value.double() for weight, value in pairs)
        return (total / sum(WEIGHTS)).to(values[0].dtype)
    total = sum(weight * int(value) for weight, value in zip(WEIGHTS, values, strict=True))
    return torch.tensor(round(Fraction(total, sum(WEIGHTS))))


def test_the_row_of_fedavg_is_what_plain_torch_makes_of_its_job():
    job, code = load_job(JOB), runpy.run_path(str(JOB.with_name("model.py")))
    nets = [code["Net"](WIDTHS["tiny"]) for _ in WEIGHTS]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5) for net in nets]
    aims = [code["targets"](net, index) for index, net in enumerate(nets)]
    scores = []
    for number in range(1, job.rounds + 1):
        for index, site in enumerate(job.clients.site_names):
            seed = site_seed(job.seed, site, number, "train")
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            for _ in range(2):
                loss = code["loss_of"](nets[index], aims[index])
                optimizers[index].zero_grad()
                loss.backward()
                optimizers[index].step()
            code["move_buffers"](nets[index], index + number - 1)  # the state counts trainings
        states = [net.state_dict() for net in nets]
        model = {name: mean_of(name, states) for name in states[0]}
        for net in nets:
            net.load_state_dict(model)
        score = np.mean([code["accuracy"](*each) for each in zip(nets, aims, strict=True)])
        scores.append(float(score))
    row = recorded("fedavg, tiny")
    assert body_digest(MemoryBody.of(model)) == row["model"]
    assert scores == row["accuracy"]
