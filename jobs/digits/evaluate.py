"""Central evaluation: score each global model on all unseen digits, which no site trains on."""

import argparse

import numpy as np
import torch
from model import Net
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--split_seed", type=int, required=True, help="that of the sites")
args = parser.parse_args()

digits = load_digits()
unseen = np.random.default_rng(args.split_seed).permutation(len(digits.target))[:360]
images = torch.tensor(digits.images[unseen], dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target[unseen])
net = Net()
flare.init()

while flare.is_running():
    flare.receive(into=net)
    net.eval()
    with torch.no_grad():
        scores = net(images)
    metrics = {
        "accuracy": (scores.argmax(dim=1) == labels).float().mean().item(),
        "loss": cross_entropy(scores, labels).item(),
    }
    flare.send(flare.FLModel(metrics=metrics))
