"""A small network for small images."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width * 9, 4)

    def forward(self, images):
        features = torch.relu(self.norm(self.conv(images)))
        pooled = nn.functional.max_pool2d(features, 2)
        return self.fc(pooled.flatten(1))


def accuracy(net, loader):
    net.eval()
    right = total = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (net(images).argmax(1) == labels).sum().item()
            total += len(labels)
    return right / total
