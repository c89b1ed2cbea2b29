"""In the style of the examples with many arguments: flags, numbers, lists and text."""

import argparse

import nvflare.client as flare
import torch
from images import Images
from network import Network, accuracy


def define_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8])
    parser.add_argument("--title", default="none")
    return parser.parse_args()


args = define_parser()
assert (args.verbose, args.title) == (False, "two words"), args
flare.init()
site = flare.get_site_name()
net, loss = Network(), torch.nn.CrossEntropyLoss()
while flare.is_running():
    received = flare.receive()
    net.load_state_dict(received.params)
    score = accuracy(net, torch.utils.data.DataLoader(Images("test", 32), batch_size=32))
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    net.train()
    for _ in range(args.epochs):
        for size in args.sizes:
            images = Images(site, 16)
            loader = torch.utils.data.DataLoader(images, batch_size=size, shuffle=args.shuffle)
            for batch, labels in loader:
                optimizer.zero_grad()
                loss(net(batch), labels).backward()
                optimizer.step()
    flare.send(flare.FLModel(params=net.state_dict(), metrics={"accuracy": score}))
