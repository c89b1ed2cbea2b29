"""What each site does: train the global model on its own digits, or score it on unseen ones."""

import argparse

import numpy as np
import torch
from model import Net
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--alpha", type=float)
parser.add_argument("--split_seed", type=int)
parser.add_argument("--epochs", type=int)
parser.add_argument("--lr", type=float)
parser.add_argument("--batch_size", type=int)
args = parser.parse_args()


def split(labels, sites, alpha, rng):
    """Deal out examples so that each label is spread over the sites by a Dirichlet draw.

    Measuring non-identical data: Hsu, Qi, Brown 2019, arXiv:1909.06335.
    """
    while True:
        shares = [[] for _ in range(sites)]
        for label in range(10):
            mine = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(rng.dirichlet([alpha] * sites))[:-1] * len(mine)
            for share, part in zip(shares, np.split(mine, cuts.astype(int)), strict=True):
                share.extend(part)
        if min(map(len, shares)) >= args.batch_size:  # draw again rather than starve a site
            return shares


def my_data():
    """This site's training images, and its part of the test set that no site trains on."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    rng = np.random.default_rng(args.split_seed)
    order = rng.permutation(len(labels))
    test, train = order[:360], order[360:]
    site = int(flare.get_site_name().removeprefix("site-")) - 1
    sites = flare.system_info()["clients"]
    mine = train[split(digits.target[train], sites, args.alpha, rng)[site]]
    unseen = test[site::sites]
    return images[mine], labels[mine], images[unseen], labels[unseen]


def train(net, images, labels):
    """A few epochs of stochastic gradient descent; returns the mean loss of the last one."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    for _ in range(args.epochs):
        losses = []
        for batch in torch.randperm(len(labels)).split(args.batch_size):
            loss = cross_entropy(net(images[batch]), labels[batch])
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
