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
for name in ("alpha", "lr", "momentum"):
    parser.add_argument(f"--{name}", type=float)
for name in ("split_seed", "epochs", "batch_size"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--test", choices=["common", "own"])
args = parser.parse_args()


def my_data():
    """This site's training images, and those that it scores a model on."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    rng = np.random.default_rng(args.split_seed)
    order = rng.permutation(len(labels))
    test, train = order[:360], order[360:]
    site, sites = flare.system_info()["site_index"], flare.system_info()["clients"]
    parts = partition.dirichlet(  # drawn again rather than starve a site
        digits.target[train], sites, args.alpha, seed=rng, min_examples=args.batch_size
    )
    mine = train[parts[site]]
    partition.record(digits.target[mine])  # the report draws the split
    unseen = test[site::sites]
    if args.test == "own":
        unseen, mine = np.split(rng.permutation(mine), [len(mine) // 5])
    return images[mine], labels[mine], images[unseen], labels[unseen]


def train(net, images, labels, control):
    """A few epochs of stochastic gradient descent; returns the mean loss of the last one."""
    net.train()
    momentum = 0.0 if control else args.momentum  # SCAFFOLD corrects steps of plain SGD
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=momentum)
    regulariser = flare.DynamicRegulariser(net)
    for _ in range(args.epochs):
        losses = []
        for batch in torch.randperm(len(labels)).split(args.batch_size):
            loss = cross_entropy(net(images[batch]), labels[batch])
            # Each is 0 unless the workflow asks for it: FedProx and Ditto do, and FedDyn.
            loss = loss + flare.proximal_term(net) + regulariser.term()
            optimizer.zero_grad()
            loss.backward()
            if control:
                control.correct()
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
    model = flare.receive(into=net)  # the bytes go straight into the network's own parameters
    flare.personal(net)  # with fedper alone, the last layer is the site's own
    has_own_model = "ditto_lambda" in model.meta
    if flare.is_evaluate():
        metrics = {"accuracy": accuracy(net, unseen_images, unseen_labels)}
        if has_own_model:
            with flare.own_model(net):
                metrics["personal_accuracy"] = accuracy(net, unseen_images, unseen_labels)
        flare.send(flare.FLModel(metrics=metrics, meta={"num_examples": len(unseen_labels)}))
    else:
        if has_own_model:
            with flare.own_model(net):
                train(net, images, labels, None)
        # With SCAFFOLD alone, a control comes along with the model.
        control = flare.ScaffoldControl(net, model) if "control" in model.meta else None
        metrics, meta = {"loss": train(net, images, labels, control)}, {"num_examples": len(labels)}
        if control:
            meta["control"] = control.difference(args.lr)
        flare.send(flare.FLModel(params=net.state_dict(), metrics=metrics, meta=meta))
