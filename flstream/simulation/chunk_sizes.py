"""The chunk sizes of a run, where the job file leaves them to the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from flstream.job import Job, job_keys
from flstream.job.hocon import read_hocon
from flstream.job.problems import RefusedValueError
from flstream.model.memory import Framework
from flstream.runs.run_directory import RunDirectory
from flstream.streaming.chunk_choice import measured_chunk_size
from flstream.streaming.settings import StreamSettings

_KEY_OF: dict[Framework, str] = {
    "pytorch": "tensor_download_chunk_size",
    "numpy": "np_download_chunk_size",
}


def with_chunk_sizes(job: Job, run: RunDirectory | None = None) -> Job:
    """Return a job whose chunk sizes are numbers.

    Args:
        job: The job. A size that it states stays as it is.
        run: Run directory of the run. The sizes that an earlier sitting has chosen there are kept,
            since the requests and chunks of a summary are those of all sittings. None for a job
            that is not run.
    """
    open_keys = [name for name in _KEY_OF.values() if getattr(job.streaming, name) == "auto"]
    if not open_keys:
        return job
    sizes = {} if run is None else dict(_recorded(run))
    if not sizes.keys() >= set(open_keys):
        sizes = dict.fromkeys(open_keys, _chosen(job)) | sizes
    chosen = {name: sizes[name] for name in open_keys}
    return job.model_copy(update={"streaming": job.streaming.model_copy(update=chosen)})


def _recorded(run: RunDirectory) -> Iterator[tuple[str, int]]:
    """Yield the sizes of a run's job file, by key; none where the run has not begun."""
    if not run.job_file.exists():
        return
    keys, values = job_keys(), read_hocon(run.job_file).values
    for name in _KEY_OF.values():
        key = keys[f"streaming.{name}"]
        size: int | str = "auto"
        if key.is_in(values):
            with suppress(RefusedValueError):  # somebody has changed it to what is no size
                size = key.parse(key.find(values), run.path)
        if isinstance(size, int):
            yield name, size


def _chosen(job: Job) -> int:
    """Choose a size in bytes for a job that states none.

    Over a link or a network longer chunks gain nothing, and a damaged one costs more. One that is
    encoded keeps other receivers waiting. Where the size is stated of what the job exchanges, the
    other one is hardly used.
    """
    streaming = job.streaming
    is_open = getattr(streaming, _KEY_OF[job.train.exchange_format]) == "auto"
    is_plain = not (streaming.codecs.down or streaming.codecs.up)
    is_here = job.engine.type == "local" and not job.network.is_on
    if is_open and is_plain and is_here and streaming.mode != "native":
        return measured_chunk_size()
    return StreamSettings.chunk_size
