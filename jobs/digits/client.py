"""What each site does: train the global model on its own digits, or score it on unseen ones."""

import argparse

import numpy as np
import torch
from model import Net
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import flstream.client as flare
from flstream.client import partition

parser = argparse.ArgumentParser()
parser.add_argument("--alpha", type=float)
parser.add_argument("--split_seed", type=int)
parser.add_argument("--epochs", type=int)
parser.add_argument("--lr", type=float)
parser.add_argument("--batch_size", type=int)
parser.add_argument("--test", choices=["common", "own"], default="common")
args = parser.parse_args()


def my_data():
    """This site's training images, and those that it scores a model on.

    The latter are its part of a test set that no site trains on, or a fifth of its own images.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    rng = np.random.default_rng(args.split_seed)
    order = rng.permutation(len(labels))
    test, train = order[:360], order[360:]
    site, sites = flare.system_info()["site_index"], flare.system_info()["clients"]
    least = args.batch_size  # drawn again rather than starve a site
    parts = partition.dirichlet(
        digits.target[train], sites, args.alpha, seed=rng, min_examples=least
    )
    mine = train[parts[site]]
    partition.record(digits.target[mine])  # the report draws the split
    unseen = test[site::sites]
    if args.test == "own":
        unseen, mine = np.split(rng.permutation(mine), [len(mine) // 5])
    return images[mine], labels[mine], images[unseen], labels[unseen]


def train(net, images, labels):
    """A few epochs of stochastic gradient descent; returns the mean loss of the last one."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    regulariser = flare.DynamicRegulariser(net)
    for _ in range(args.epochs):
        losses = []
        for batch in torch.randperm(len(labels)).split(args.batch_size):
            loss = cross_entropy(net(images[batch]), labels[batch])
            # Each is 0 unless the workflow asks for it: FedProx and Ditto do, and FedDyn.
            loss = loss + flare.proximal_term(net) + regulariser.term()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def accuracy(net, images, labels):
    """The share of images whose digit the network names."""
    net.eval()
    return (net(images).argmax(dim=1) == labels).float().mean().item()


net = Net()
flare.init()
images, labels, unseen_images, unseen_labels = my_data()

while flare.is_running():
    flare.receive(into=net)  # the bytes go straight into the network's own parameters
    if flare.is_evaluate():
        metrics = {"accuracy": accuracy(net, unseen_images, unseen_labels)}
        flare.send(flare.FLModel(metrics=metrics, meta={"num_examples": len(unseen_labels)}))
    else:
        loss = train(net, images, labels)
        flare.send(
            flare.FLModel(
                params=net.state_dict(),
                metrics={"loss": loss},
                meta={"num_examples": len(labels)},
            )
        )
