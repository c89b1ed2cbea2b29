"""An epoch of a DataLoader with workers; run as a script, it prints the seconds of one."""

import time

import torch


class Images(torch.utils.data.Dataset):
    """Images that are made anew for each access, which is what loaders have workers for."""

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 32, 32, generator=generator)
        for _ in range(20):
            image = image.flip(1).roll(1, 2) * 0.99
        return image, index % 10


def epoch():
    """Train for an epoch, and return its seconds."""
    loader = torch.utils.data.DataLoader(Images(), batch_size=32, num_workers=2)
    net = torch.nn.Conv2d(3, 8, 3)
    began = time.perf_counter()
    for images, _ in loader:
        net(images).mean().backward()
    return time.perf_counter() - began


def build():
    """Return a model of four numbers."""
    return {"w": torch.zeros(4)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(epoch())
