"""A sender in a process of its own that changes what it offers while it is being fetched.

    python unlucky.py DESCRIPTOR HOW

It writes the token, waits for a line, changes the second half of the tensor, or of the file, writes
a line, and then how the offer ended.
"""

import socket
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from flstream.streaming.api import add_file, add_tensors
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import SocketChannel

HALF = 4 << 20


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    with DownloadService() as service, tempfile.TemporaryDirectory() as folder:
        service.attach(SocketChannel(socket.socket(fileno=int(sys.argv[1])), "site-1"), "site-1")
        weight, path = torch.ones(2 * HALF, dtype=torch.uint8), Path(folder) / "m.safetensors"
        how = sys.argv[2]
        if how == "file":
            save_file({"w": weight}, path)
            ref = add_file(service, path, ["site-1"])
        else:
            ref = add_tensors(service, {"w": weight}, ["site-1"])
        say(ref.token.hex())
        sys.stdin.readline()
        if how == "in place":
            weight[HALF:].fill_(2)
        elif how == "through a view":
            weight.view(2, HALF)[1].add_(1)
        elif how == "file":
            with path.open("r+b") as file:
                file.seek(-HALF, 2)
                file.write(bytes([2]) * HALF)
        elif how == "through NumPy":
            weight.numpy()[HALF:] = 2
        say("changed")
        say(ref.wait(30).status)
