"""A process of its own that downloads a model of one value into a file, and waits half-way.

    python resuming.py PATH VALUE

It writes a line once half of the model is there, waits for a line, and writes how it ended.
"""

import sys
from pathlib import Path

import numpy as np

from flstream.errors import CheckpointError
from flstream.streaming.api import add_arrays, download_file
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import pipe

SETTINGS = StreamSettings(chunk_size=1 << 16, request_size=1 << 18)


def wait_half_way(done, nbytes):
    if done == nbytes // 2:
        print("half", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    path, value = Path(sys.argv[1]), int(sys.argv[2])
    with DownloadService() as service:
        ours, theirs = pipe("server", "site-1")
        service.attach(ours, "site-1")
        ref = add_arrays(service, {"w": np.full(1 << 20, value, np.uint8)}, ["site-1"])
        receiver = Receiver(theirs, "server")
        try:
            status, _ = download_file(
                receiver, ref.token, path, settings=SETTINGS, on_progress=wait_half_way, resume=True
            )
            print(status.code, flush=True)
        except CheckpointError as error:
            print(error, flush=True)
        print(ref.wait(10).status, flush=True)
