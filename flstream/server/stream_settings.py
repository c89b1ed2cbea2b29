"""Settings of streaming, from the job file's section."""

from __future__ import annotations

from dataclasses import replace

from flstream.job import Job
from flstream.model.memory import Framework
from flstream.streaming.settings import StreamSettings

# Seconds after which nobody waits any more who may wait as long as it takes.
_FOREVER = 1e9


def stream_settings(job: Job, framework: Framework) -> StreamSettings:
    """Return the settings with which a job's models are fetched.

    Args:
        job: The job.
        framework: Kind of values that the models are exchanged as, which selects the chunk size.
    """
    streaming = job.streaming
    chunk_size = {
        "pytorch": streaming.tensor_download_chunk_size,
        "numpy": streaming.np_download_chunk_size,
    }[framework]
    links = job.links(job.clients.site_names).values()
    # On one machine, to compare takes longer than to read.
    is_far = bool(links) or not job.engine.is_local
    silence = max((link.silence for link in links), default=0.0)
    settings = StreamSettings(
        chunk_size=0 if streaming.mode == "native" else chunk_size,
        request_timeout=streaming.streaming_per_request_timeout,
        ping_timeout=StreamSettings.ping_timeout + silence,
        reuse=streaming.reuse == "auto" and streaming.mode != "native" and is_far,
        direct=streaming.direct == "auto" and streaming.mode != "native",
    )
    if job.engine.is_inline:  # whoever waits may have to wait for who sits in pdb, too
        return replace(settings, request_timeout=_FOREVER, ping_after=_FOREVER)
    return settings
