"""Client for the exchange job that keeps the model in a file, not in memory.

It stands for a client that trains a part of a model, or on another device, and never has more than
a range of the model in memory. Like the exchange job's script, it adds the site's number to every
weight, here range by range in the file; the update is offered from that file.

The client API returns a model as tensors, so this client uses the worker directly.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from flstream.client.session import current
from flstream.errors import StreamingError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.layout import Layout
from flstream.model.source import Scratch, views_of
from flstream.streaming.download import RemoteSource, download
from flstream.worker.messages import MODEL, Answered, OfferedUpdate, SiteAnswer, Task
from flstream.worker.turns import SiteTurns
from flstream.worker.worker import Worker

_STEP = 2 << 20


def add(source: FileSource, number: int) -> None:
    """Add a number to every weight of a float32 file, in place, 2 MiB at a time."""
    scratch = Scratch()
    fd = os.open(source.path, os.O_WRONLY)
    try:
        for start, stop in source.layout.ranges(_STEP):
            (view,) = views_of(source, start, stop, scratch)
            weights = np.frombuffer(view, np.float32)
            np.add(weights, number, out=weights)
            os.pwrite(fd, view, source.header_bytes + start)
    finally:
        os.close(fd)


def serve(worker: Worker, task: Task, path: Path) -> None:
    """Run a task: fetch its model into a file, change it, and offer it."""
    with ExitStack() as stack:

        def sink_for(layout: Layout) -> FileSink:
            return stack.enter_context(closing(FileSink(path, layout, durable=False)))

        remote = RemoteSource(worker.down, task.bodies[MODEL], worker.info.streaming)
        source = download(remote, sink_for).finish()
    worker.received(task.effect, remote.cost)
    (site,) = task.sites
    add(source, site.index + 1)
    # Opened anew: a source is not to change after it was opened.
    ref = worker.offer(FileSource(path))
    answer = SiteAnswer(site.site, 1.0, {}, has_params=True, update=OfferedUpdate(ref.token))
    worker.send(Answered(task.effect, [answer]))
    outcome = ref.wait()
    if not outcome.ok:
        raise StreamingError(f"the update of round {task.round} was not used: {outcome.reason}")
    path.unlink()


def main() -> None:
    """Serve task after task."""
    turns = current().turns
    assert isinstance(turns, SiteTurns)  # without train.command there is one process
    worker, folder = turns.worker, Path(turns.constants()["site_dir"])
    worker.ready()
    while (task := worker.next_task()) is not None:
        serve(worker, task, folder / "model.safetensors")


if __name__ == "__main__":
    main()
