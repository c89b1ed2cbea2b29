"""The codecs with a loss with which a run's models and updates were sent, from its job file."""

from __future__ import annotations

from typing import Any, Literal

from flstream.codecs.chain import chain_of
from flstream.codecs.lossy import LossyCodec
from flstream.errors import CheckpointError
from flstream.job import JobError
from flstream.job.codecs import CodecPlan
from flstream.job.hocon import read_hocon
from flstream.job.keys import keys_in
from flstream.runs.run_directory import RunDirectory

_CODECS = "streaming.codecs.{}"
_LOSSLESS = "streaming.codecs.require_lossless"


def lossy_codec_of(run: RunDirectory, way: Literal["down", "up"]) -> LossyCodec | None:
    """Return the codec with a loss of a run's models (``down``) or updates; None for none.

    Raises:
        CheckpointError: The job file cannot be read, or the code of the user's own codec.
    """
    if not run.job_file.exists():
        return None
    hocon = read_hocon(run.job_file)
    if hocon.problems:
        raise CheckpointError(str(JobError(run.job_file, hocon.problems)))
    keys = keys_in(hocon.values)
    plan: list[Any] = []
    try:
        for name in (_CODECS.format(way), _LOSSLESS):
            key = keys[name]
            raw = key.find(hocon.values)
            plan.append(key.default if raw is None else key.parse(raw, run.path))
        specs, lossless = plan
        return chain_of(CodecPlan(specs, lossless, way == "down")).lossy
    except Exception as error:  # of the user's code, which may be gone
        raise CheckpointError(
            f"the codecs that {run.job_file} names cannot be made: {error}; put their "
            "file back, since which tensors they encode is for them to say"
        ) from error
