"""What a job says about streaming, as the rooms below take it."""

from __future__ import annotations

from flstream.job import Job
from flstream.model.memory import Framework
from flstream.streaming.receiver import StreamSettings


def stream_settings(job: Job, framework: Framework) -> StreamSettings:
    """How models of tensors, or of arrays, are fetched in a job."""
    streaming = job.streaming
    chunk_size = {
        "pytorch": streaming.tensor_download_chunk_size,
        "numpy": streaming.np_download_chunk_size,
    }[framework]
    return StreamSettings(
        chunk_size=0 if streaming.mode == "native" else chunk_size,
        request_size=streaming.request_size,
        window=streaming.window,
        request_timeout=streaming.streaming_per_request_timeout,
        push=streaming.mode == "push",
    )
