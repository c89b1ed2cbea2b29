"""What each site does: as in the job digits, except that some sites attack."""

import argparse

import numpy as np
import torch
from model import Net
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import flstream.client as flare
from flstream.client import partition

parser = argparse.ArgumentParser()
for name in ("alpha", "lr", "momentum", "scale"):
    parser.add_argument(f"--{name}", type=float)
for name in ("split_seed", "epochs", "batch_size"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--attack", choices=["none", "sign_flip", "noise", "label_flip"])
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
    parts = partition.dirichlet(  # drawn again rather than starve a site
        digits.target[train], sites, args.alpha, seed=rng, min_examples=args.batch_size
    )
    mine = train[parts[site]]
    partition.record(digits.target[mine])  # the report draws the split
    unseen = test[site::sites]
    taught = 9 - labels[mine] if args.attack == "label_flip" else labels[mine]
    return images[mine], taught, images[unseen], labels[unseen]


def train(net, images, labels, control):
    """A few epochs of stochastic gradient descent; returns the mean loss of the last one."""
    net.train()
    momentum = 0.0 if control else args.momentum  # SCAFFOLD corrects steps of plain SGD
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=momentum)
    for _ in range(args.epochs):
        losses = []
        for batch in torch.randperm(len(labels)).split(args.batch_size):
            # The term is 0 unless the workflow asks for it, as FedProx does.
            loss = cross_entropy(net(images[batch]), labels[batch]) + flare.proximal_term(net)
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


def attacked(net, received):
    """What a site sends: what it has trained, or, `scale` times as large, its opposite or noise."""
    trained = net.state_dict()
    match args.attack:
        case "sign_flip":
            return {n: received[n] - args.scale * (trained[n] - received[n]) for n in trained}
        case "noise":
            return {n: received[n] + args.scale * torch.randn_like(trained[n]) for n in trained}
    return trained


net = Net()
flare.init()
images, labels, unseen_images, unseen_labels = my_data()

while flare.is_running():
    model = flare.receive(into=net)  # the bytes go straight into the network's own parameters
    if flare.is_evaluate():
        metrics = {"accuracy": accuracy(net, unseen_images, unseen_labels)}
        flare.send(flare.FLModel(metrics=metrics, meta={"num_examples": len(unseen_labels)}))
    else:
        received = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        # With SCAFFOLD alone, a control comes along with the model.
        control = flare.ScaffoldControl(net, model) if "control" in model.meta else None
        metrics, meta = {"loss": train(net, images, labels, control)}, {"num_examples": len(labels)}
        if control:
            meta["control"] = control.difference(args.lr)
        flare.send(flare.FLModel(params=attacked(net, received), metrics=metrics, meta=meta))
