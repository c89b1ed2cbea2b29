"""Small images with one bright quarter, whose number is their class."""

import random

import torch


class Images(torch.utils.data.Dataset):
    """Images of one site: they follow from its name alone."""

    def __init__(self, site, size):
        generator = torch.Generator().manual_seed(random.Random(site).getrandbits(32))
        self.labels = torch.randint(4, (size,), generator=generator)
        self.images = 0.5 * torch.randn(size, 1, 8, 8, generator=generator)
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            row, column = 4 * (label // 2), 4 * (label % 2)
            image[0, row : row + 4, column : column + 4] += 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]
