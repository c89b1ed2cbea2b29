"""A job whose score follows from its arguments, and sweeps of it from the shared fork server."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from rate_job import write_job
from run_fixtures import share_host_in_sweeps

from flstream.job import Job, load_job
from flstream.sweep.grid import Point, parse_axis, parse_variant
from flstream.sweep.running import Sweep


class Sweeps(NamedTuple):
    """Makes sweeps of the job in a folder."""

    folder: Path

    def job(self, *overrides: str) -> Job:
        return load_job(self.folder / "job.conf", overrides)

    def sweep(
        self,
        *axes: str,
        seeds: int = 1,
        prune: bool = False,
        into: str = "sweep",
        variants: Sequence[str] = (),
    ) -> Sweep:
        def job_of(point: Point) -> Job:
            varied = [f"{key}={value}" for key, value in point.values.items()]
            return load_job(self.folder / "job.conf", varied, {"seed": point.seed})

        vary, pairs = dict(map(parse_axis, axes)), list(map(parse_variant, variants))
        return Sweep(self.folder / into, job_of, vary, seeds, variants=pairs, prune=prune)


@pytest.fixture
def sweeps(tmp_path, monkeypatch, fork_server):
    share_host_in_sweeps(monkeypatch)
    write_job(tmp_path)
    return Sweeps(tmp_path)
