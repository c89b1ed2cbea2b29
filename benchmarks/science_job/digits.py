"""What a site of any workflow does with its digits: plain SGD, with what the workflow asks for."""

import argparse

import numpy as np
import torch
from digits_model import Net
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
args = parser.parse_args()


def my_data():
    """This site's training images, and its part of the test set that no site trains on."""
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
    unseen = test[site::sites]
    return images[mine], labels[mine], images[unseen], labels[unseen]


def train(net, images, labels, control):
    """A few epochs of plain SGD of one learning rate, as SCAFFOLD wants it."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    regulariser = flare.DynamicRegulariser(net)
    for _ in range(args.epochs):
        for batch in torch.randperm(len(labels)).split(args.batch_size):
            loss = cross_entropy(net(images[batch]), labels[batch])
            loss = loss + flare.proximal_term(net) + regulariser.term()
            optimizer.zero_grad()
            loss.backward()
            if control is not None:
                control.correct()
            optimizer.step()


@torch.no_grad()
def accuracy(net, images, labels):
    """The share of images whose digit the network names."""
    net.eval()
    return (net(images).argmax(dim=1) == labels).float().mean().item()


net = Net()
flare.init()
images, labels, unseen_images, unseen_labels = my_data()

while flare.is_running():
    model = flare.receive(into=net)  # the bytes go straight into the network's own parameters
    if flare.is_evaluate():
        metrics = {"accuracy": accuracy(net, unseen_images, unseen_labels)}
        flare.send(flare.FLModel(metrics=metrics, meta={"num_examples": len(unseen_labels)}))
    else:
        control = flare.ScaffoldControl(net, model) if "control" in model.meta else None
        train(net, images, labels, control)
        meta = {"num_examples": len(labels)}
        if control is not None:
            meta["control"] = control.difference(args.lr)
        flare.send(flare.FLModel(params=net.state_dict(), meta=meta))
