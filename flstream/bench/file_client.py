"""The exchange job's client, with the model in a file instead of in memory.

This is what a client does that trains a part of a model, or with one on another device: it never
has more of it in memory than a range. Like the exchange job's script, it adds the site's own number
to every weight; here range by range, in the file. The update is on offer from that file.

The client API hands a model out as tensors, so this works a layer below it, on the worker.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from flstream.client.messages import Received, Task, Trained, TrainedSite
from flstream.client.session import current
from flstream.client.worker import Worker
from flstream.errors import StreamingError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.layout import Layout

_STEP = 2 << 20


def add(path: Path, number: int) -> None:
    """Add to every weight of a file of float32 tensors, 2 MiB at a time."""
    source, scratch = FileSource(path), Scratch()
    fd = os.open(path, os.O_WRONLY)
    try:
        for start, stop in source.layout.ranges(_STEP):
            (view,) = source.views(start, stop, scratch)
            weights = np.frombuffer(view, np.float32)
            np.add(weights, number, out=weights)
            os.pwrite(fd, view, source.header_bytes + start)
    finally:
        os.close(fd)


def serve(worker: Worker, task: Task, path: Path) -> None:
    """Fetch the model of a task into a file, train, and offer the file until it is settled."""
    with ExitStack() as stack:

        def sink_for(layout: Layout) -> FileSink:
            return stack.enter_context(closing(FileSink(path, layout, durable=False)))

        sink, cost = worker.fetch(task.ref, sink_for)
        sink.finish()
    worker.send(Received(task.round, cost.retries))
    (site,) = task.sites
    add(path, int(site.site.removeprefix("site-")))
    ref = worker.offer(FileSource(path), task.chunk_size)
    trained = TrainedSite(site.site, 1.0, "FULL", "pytorch", {})
    worker.send(Trained(task.round, ref.token, [trained]))
    outcome = ref.wait()
    if not outcome.ok:
        raise StreamingError(f"the update of round {task.round} was not used: {outcome.reason}")
    path.unlink()


def main() -> None:
    """Serve task after task."""
    session = current()
    worker, folder = session.worker, Path(session.constants()["site_dir"])
    worker.ready()
    while (task := worker.next_task()) is not None:
        serve(worker, task, folder / "model.safetensors")


if __name__ == "__main__":
    main()
