"""A small GPT over bytes, with rotary places, and the optimizer that trains it."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention


def rotated(values: Tensor, angles: Tensor) -> Tensor:
    """Queries or keys (..., length, width) turned by angles of their places (arXiv:2104.09864)."""
    left, right = values.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Block(nn.Module):
    """Attention to the bytes before each byte, and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: Tensor, angles: Tensor) -> Tensor:
        """Values (n, length, width) of values of this shape."""
        split = self.attend(self.norm_1(values)).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        query, key = rotated(query, angles), rotated(key, angles)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.project(attended.transpose(1, 2).flatten(-2))
        return values + self.narrow(relu(self.widen(self.norm_2(values))).square())


class GPT(nn.Module):
    """0.5 million parameters with the job file's arguments; 3 million with 5 layers of 224."""

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embed.weight, std=0.05)
        half = width // heads // 2
        angles = torch.arange(length)[:, None] * 100.0 ** -(torch.arange(half) / half)
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n, length, 256) of the bytes that follow tokens (n, length)."""
        values = self.embed(tokens)
        for block in self.blocks:
            values = block(values, self.angles[: tokens.shape[1]])
        return self.norm(values) @ self.embed.weight.T

    def loss(self, rows: Tensor) -> Tensor:
        """Mean loss, in nats a byte, of each byte of rows (n, length + 1) but their first."""
        logits = self(rows[:, :-1])
        return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    @torch.no_grad()
    def score(self, rows: Tensor) -> float:
        """Mean loss of rows (n, length + 1), some at a time."""
        return sum(self.loss(part).item() * len(part) for part in rows.split(32)) / len(rows)


def optimizer_of(net: GPT, lr: float, warmup: int, steps: int):
    """AdamW, and a schedule: the rate rises for some steps, and falls along a cosine to a tenth."""

    def factor(step: int) -> float:
        rise = min(1.0, (step + 1) / warmup)
        return rise * (0.55 + 0.45 * math.cos(math.pi * min(step / steps, 1.0)))

    optimizer = torch.optim.AdamW(
        net.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
