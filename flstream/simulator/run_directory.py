"""The run directory: what lies where. Its shape is a contract that scripts rely on."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from flstream.errors import UsageError


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run.

    Attributes:
        path: the folder, absolute.
    """

    path: Path

    @classmethod
    def create(cls, job_name: str, path: Path | None = None) -> RunDirectory:
        """Make the folder of a new run.

        Args:
            job_name: for the default, ``runs/<job>-<time>`` below the working directory.
            path: the folder to use instead. It may exist if it is empty.

        Raises:
            UsageError: the folder has something in it, or cannot be made.
        """
        named = path or Path("runs") / f"{job_name}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            run = cls(named.absolute() if path else _made(named.absolute()))
            run.path.mkdir(parents=True, exist_ok=True)
            if any(run.path.iterdir()):
                raise UsageError(
                    f"{named} is not empty; name a new folder with --run-dir, "
                    "since a run never deletes what it did not create"
                )
            run.checkpoints.mkdir()
            run.sites.mkdir()
        except OSError as error:
            raise UsageError(
                f"the run directory {named} cannot be made: {error.strerror}"
            ) from error
        return run

    @property
    def job_file(self) -> Path:
        """The job as resolved, with every default written out."""
        return self.path / "job.conf"

    @property
    def summary(self) -> Path:
        """What came of the run."""
        return self.path / "summary.json"

    @property
    def events(self) -> Path:
        """One event a line."""
        return self.path / "events.jsonl"

    @property
    def memory(self) -> Path:
        """One sample of memory a line."""
        return self.path / "memory.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the models that rounds ended with."""
        return self.path / "checkpoints"

    @property
    def final_model(self) -> Path:
        """The model that the run ended with."""
        return self.path / "global.safetensors"

    @property
    def sites(self) -> Path:
        """The folder of the sites' own folders."""
        return self.path / "sites"

    def checkpoint(self, round_number: int) -> Path:
        """The model after a round; round 0 is the initial model."""
        return self.checkpoints / f"round-{round_number:04d}.safetensors"

    def site(self, name: str) -> Path:
        """The folder of a site's own outputs and state."""
        return self.sites / name

    def site_log(self, name: str) -> Path:
        """What a site's script prints."""
        return self.site(name) / "log.txt"

    def log(self, process: str) -> Path:
        """What a process that is not a site prints; it is not kept if that is nothing."""
        return self.path / f"{process}.log"

    def tidy(self) -> None:
        """Remove what a run's processes leave that is of no use once they have ended.

        A process that is killed cannot remove the checkpoint it was writing. Only what this run
        made is touched.
        """
        for temporary in self.checkpoints.glob("round-*.safetensors.tmp"):
            temporary.unlink()
        for log in self.path.glob("*.log"):
            if log.stat().st_size == 0:
                log.unlink()

    def publish_final_model(self, round_number: int) -> None:
        """Give the checkpoint of the last round its second name."""
        try:
            os.link(self.checkpoint(round_number), self.final_model)
        except OSError:
            # Not every file system has hard links.
            shutil.copy2(self.checkpoint(round_number), self.final_model)


def _made(path: Path) -> Path:
    """Make a folder of this name, or with a number behind it where a run of the same second did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with suppress(FileExistsError):
            candidate.mkdir()
            return candidate
    raise AssertionError("count() has no end")


def write_atomically(path: Path, text: str) -> None:
    """Write a small file such that it is either whole and durable or not there."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
