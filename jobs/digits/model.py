"""A small convolutional network for 8x8 grey images of digits."""

from torch import Tensor, nn


class Net(nn.Module):
    """6,090 parameters: two convolutions, each halving the image, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 2 * 2, 10)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 1, 8, 8)."""
        return self.layers(images)
