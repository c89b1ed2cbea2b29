"""One point in 20 dimensions, in double precision."""

import torch


class Point(torch.nn.Module):
    """The point that is sought, which begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(20, dtype=torch.float64))
