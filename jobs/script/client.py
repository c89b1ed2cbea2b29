"""What each site does: train the global model on its own points, or score it on new ones."""

import argparse

import torch
from model import Net
from torch.nn.functional import cross_entropy

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--lr", type=float)
args = parser.parse_args()


def points(count, seed):
    """Points (count, 2) of the square from -1 to 1, and for each whether it lies in the circle."""
    generator = torch.Generator().manual_seed(seed)
    places = 2 * torch.rand(count, 2, generator=generator) - 1
    return places, (places.norm(dim=1) < 0.7).long()


def my_data(site, sites):
    """This site's points: those on its own side of the centre, which are all it ever sees."""
    places, labels = points(2000, seed=7)
    angle = torch.atan2(places[:, 1], places[:, 0]) / torch.pi  # from -1 to 1
    mine = ((angle + 1) / 2 * sites).long().clamp(max=sites - 1) == site
    return places[mine], labels[mine]


def train(net, places, labels):
    """A few epochs of stochastic gradient descent; returns the mean loss of the last one."""
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    for _ in range(args.epochs):
        losses = []
        for batch in torch.randperm(len(labels)).split(32):
            loss = cross_entropy(net(places[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def accuracy(net):
    """The share of points of the whole square, which no site has, that the network gets right."""
    places, labels = points(2000, seed=8)
    return (net(places).argmax(dim=1) == labels).float().mean().item()


net = Net()
flare.init()
site = int(flare.get_site_name().removeprefix("site-")) - 1
places, labels = my_data(site, flare.system_info()["clients"])

while flare.is_running():
    flare.receive(into=net)  # the bytes go straight into the network's own parameters
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": accuracy(net)}))
    else:
        metrics, meta = {"loss": train(net, places, labels)}, {"num_examples": len(labels)}
        flare.send(flare.FLModel(params=net.state_dict(), metrics=metrics, meta=meta))
