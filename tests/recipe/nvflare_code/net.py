import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        return self.layers(x)
