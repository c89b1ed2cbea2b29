"""A site's gradient steps on its own least squares, and the distance from the optimum of all."""

import argparse

import numpy as np
import torch
from least_squares_model import Point

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--lr", type=float)
parser.add_argument("--problem_seed", type=int)
args = parser.parse_args()


def problem(index):
    """Matrix and right side of a site, whose curvatures differ from those of others."""
    rng = np.random.default_rng([args.problem_seed, index])
    matrix = rng.normal(size=(30, 20)) * rng.uniform(0.1, 1.0, 20) / 30**0.5
    return torch.tensor(matrix), torch.tensor(rng.normal(size=30))


net = Point()
flare.init()
info = flare.system_info()
matrix, right = problem(info["site_index"])
everything = [problem(index) for index in range(info["clients"])]
normal = sum(matrix.T @ matrix for matrix, _ in everything)
optimum = torch.linalg.solve(normal, sum(matrix.T @ side for matrix, side in everything))

while flare.is_running():
    model = flare.receive(into=net)
    if flare.is_evaluate():
        distance = (net.x.detach() - optimum).norm() / optimum.norm()
        flare.send(flare.FLModel(metrics={"distance": distance.item()}))
        continue
    control = flare.ScaffoldControl(net, model) if "control" in model.meta else None
    regulariser = flare.DynamicRegulariser(net) if "feddyn_alpha" in model.meta else None
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = 0.5 * ((matrix @ net.x - right) ** 2).sum()
        if regulariser is not None:
            loss = loss + regulariser.term()
        loss.backward()
        if control is not None:
            control.correct()
        optimizer.step()
    meta = {} if control is None else {"control": control.difference(args.lr)}
    flare.send(flare.FLModel(params=net.state_dict(), meta=meta))
