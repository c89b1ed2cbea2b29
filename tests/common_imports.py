"""Imports of the fork server that tests share."""

import numpy
import torch.optim

__all__ = ["numpy", "torch"]
