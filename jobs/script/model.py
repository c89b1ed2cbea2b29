"""A small network that says for a point of the plane whether it lies in a circle."""

from torch import Tensor, nn


class Net(nn.Module):
    """1,218 parameters: two hidden layers of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, 32),
            nn.ReLU(),
            nn.Linear(32, 32),
            nn.ReLU(),
            nn.Linear(32, 2),
        )

    def forward(self, points: Tensor) -> Tensor:
        """Logits (n, 2) of points (n, 2)."""
        return self.layers(points)
