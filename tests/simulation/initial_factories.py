"""Factories whose models are the same bits, whether their tensors lie in files or in memory."""

import copy

import numpy as np
import torch
from torch import nn

from flstream.streaming import Layout


class Residual(nn.Module):
    """A block of a residual network, whose normalisation has buffers."""

    def __init__(self, width):
        super().__init__()
        self.one, self.norm = nn.Conv2d(width, width, 3), nn.BatchNorm2d(width)
        self.two, self.group = nn.Conv2d(width, width, 1, bias=False), nn.GroupNorm(2, width)
        nn.init.zeros_(self.group.weight)


def resnet():
    model = nn.Sequential(nn.Conv2d(3, 8, 7), *(Residual(8) for _ in range(3)), nn.Linear(8, 10))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def linears():
    return nn.Sequential(*(nn.Linear(40, 40) for _ in range(6)))


def wide():
    return nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 2))


def large():
    return nn.Sequential(*(nn.Linear(1 << 10, 1 << 11) for _ in range(16))).half()


def layers():
    embedding = nn.Embedding(20, 6, padding_idx=3)
    return nn.ModuleList([nn.LSTM(10, 12, 2), nn.MultiheadAttention(8, 2), embedding])


def transformer():
    return nn.Transformer(16, 2, 2, 2, 32, batch_first=True)


def tied():
    model = nn.ModuleDict({"wte": nn.Embedding(50, 8), "head": nn.Linear(8, 50)})
    model["head"].weight = model["wte"].weight
    return model, "a tokenizer"


def half():
    return linears().half()


def initialisers():
    names = (
        *("orthogonal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_normal_"),
        *("kaiming_uniform_", "eye_", "ones_", "zeros_", "normal_", "uniform_"),
    )
    state = {name: getattr(nn.init, name)(torch.empty(17, 33)) for name in names}
    state["tall"] = nn.init.orthogonal_(torch.empty(40, 8), gain=2)
    state["rejected"] = nn.init.trunc_normal_(torch.empty(300, 33), std=1.0)
    state["sparse"] = nn.init.sparse_(torch.empty(20, 10), 0.3)
    state["dirac"] = nn.init.dirac_(torch.empty(4, 4, 3))
    state["constant"] = nn.init.constant_(torch.empty(3, 4), 5)
    return state


def slices():
    model = nn.Linear(10, 20)
    with torch.no_grad():
        model.weight[3:5].zero_()
        model.weight[:, 2].normal_()
        model.weight.data[1] = 7
        model.bias.data.fill_(0.5)
        model.weight.t()[4].mul_(3)
        model.weight[model.weight > 0.2] = 0.1
    turned = torch.empty(9, 4).normal_()
    turned.t_()
    partly = torch.zeros(6)
    partly[2:].uniform_()
    return {"linear": model.weight, "turned": turned, "partly": partly, "part": partly[1:3]}


def copies():
    one, other = nn.Linear(8, 8), nn.Linear(8, 8)
    other.load_state_dict(one.state_dict())
    third = copy.deepcopy(one)
    with torch.no_grad():
        one.weight.add_(1)
        third.weight.copy_(other.weight * 2 + one.weight)
    shared = nn.Module()
    shared.register_buffer("whole", torch.randn(6))
    shared.register_buffer("part", shared.whole[2:4])
    shared = copy.deepcopy(shared)
    shared.part.zero_()
    return nn.ModuleList([one, other, third, shared])


def data():
    model = nn.Linear(6, 6)
    model.weight.data = torch.randn(6, 6)
    model.bias.data = model.weight.data[0].clone()
    model.register_buffer("rows", model.weight.data[2:4])
    return model


def complexes():
    return {"c": torch.randn(4, dtype=torch.complex64), "left": torch.empty(0)}


def from_numpy():
    model = nn.Linear(3, 3)
    model.weight.data.copy_(torch.from_numpy(np.ones((3, 3), np.float32)))
    return model


def arrays():
    return {"w": np.random.default_rng(3).normal(size=3)}


class Zeros:
    """A body that is made as it is read."""

    layout = Layout.of([("w", "F32", (10_000,)), ("b", "F16", (3,))])

    def read(self, start, stop, into):
        into[:] = bytes(stop - start)


def zeros():
    return Zeros(), "a tokenizer"


def decomposed():
    layers = nn.ModuleList(nn.Linear(*sizes) for sizes in ((12, 9), (9, 12), (12, 12), (12, 1)))
    for layer in layers:
        for full in (True, False):
            left, values, right = torch.linalg.svd(layer.weight.data, full_matrices=full)
            layer.weight.data = left[:, : len(values)] @ torch.diag(values) @ right[: len(values)]
    roots, vectors = torch.linalg.eig(layers[2].weight.data)
    left, values, right = torch.svd_lowrank(layers[0].weight.data, 3)
    low = {"left": left, "right": right.T.contiguous()}
    waves = torch.fft.rfft2(torch.rand(5, 6, 7), dim=(0, 1)) * 2
    low["waves"] = torch.fft.irfft2(waves, dim=(0, 1)).contiguous()
    low["order"] = torch.rand(2, 3, 4).permute(2, 0, 1)[:3].sort(dim=1)[0].contiguous() + 1
    low["loss"] = nn.functional.mse_loss(torch.rand(3, 4), torch.rand(3, 4)) + torch.ones(2)
    return {**layers.state_dict(), "roots": roots.real, "vectors": vectors.imag.clone(), **low}


def unset():
    model = linears()
    model.scale = nn.Parameter(torch.ones(3))
    return model


def two_dtypes():
    model = nn.Module()
    model.register_buffer("a", torch.randn(4))
    model.register_buffer("b", model.a.view(torch.int32))
    model = copy.deepcopy(model)
    model.b.zero_()
    return model
