"""The run directory: what lies where. Its shape is a contract that scripts rely on."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from flstream.errors import SimulationError, UsageError
from flstream.model.descriptors import sync_directory
from flstream.simulator.files.small_files import sync_file, temporary_of, write_whole
from flstream.telemetry.locks import lock_file

# What a folder may have in it when a run was cut off before it had written its job file.
_MADE_FIRST = {"checkpoints", "sites", "events.jsonl", "memory.jsonl", "job.conf.tmp"}
# What lies in checkpoints/, and the round that it is of: models, and what a round keeps with its
# model; the temporary files of both.
_OF_ROUND = re.compile(r"round-(\d{4,9})(?:\.[a-z_-]+)?\.safetensors(\.tmp)?")


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
            run._furnish()
        except OSError as error:
            raise UsageError(
                f"the run directory {named} cannot be made: {error.strerror}"
            ) from error
        return run

    @classmethod
    def reopen(cls, job_name: str, path: Path | None = None) -> RunDirectory:
        """The folder of a run that is to go on; a new one where none was begun.

        Args:
            job_name: for the default, the newest ``runs/<job>-<time>`` below the working directory.
            path: the folder to use instead. It need not exist.

        Raises:
            UsageError: it has something else in it than a run, or cannot be used.
        """
        folder = _newest(job_name) if path is None else path.absolute()
        if folder is None:
            return cls.create(job_name)
        run = cls(folder)
        try:
            if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
                return cls.create(job_name, folder)
            if not run._was_begun():
                raise UsageError(
                    f"{path or folder} is not a run directory, since it lacks what a run makes "
                    "first (job.conf, checkpoints/ and sites/); name one with --run-dir, or leave "
                    "out --resume to start a new run"
                )
            run._furnish()
        except OSError as error:
            raise UsageError(
                f"the run directory {path or folder} cannot be used: {error.strerror}"
            ) from error
        return run

    def _was_begun(self) -> bool:
        """Whether a run made this folder, and not, say, whoever wrote a job file."""
        if not self.path.is_dir():
            return False
        if self.job_file.exists():
            return self.checkpoints.is_dir() and self.sites.is_dir()
        # Cut off before it had written its job file, it has nothing in its folders and files yet.
        made = list(self.path.iterdir())
        has_more = any(
            any(each.iterdir()) if each.is_dir() else each == self.events and each.stat().st_size
            for each in made
        )
        return {each.name for each in made} <= _MADE_FIRST and not has_more

    def _furnish(self) -> None:
        """Make what a run begins with, unless it is there, and make all these names durable."""
        self.checkpoints.mkdir(exist_ok=True)
        self.sites.mkdir(exist_ok=True)
        # An event that is durable is of no use in a file that has no name after a power cut.
        self.events.touch()
        sync_directory(self.path)
        sync_directory(self.path.parent)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep other runs out of the folder for as long as the block lasts.

        The lock ends with this process, however that ends. It is on the file that this process
        writes itself, since a folder cannot be locked on every file system.

        Raises:
            UsageError: another run is in it.
        """
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self.memory.open("ab"))
                if not lock_file(file.fileno()):
                    raise UsageError(
                        f"a run in {self.path} is still going on; wait until it has ended, "
                        "or name another folder with --run-dir"
                    )
            except OSError as error:
                raise UsageError(
                    f"the run directory {self.path} cannot be locked: {error.strerror}; "
                    "name a folder on another disk with --run-dir"
                ) from error
            yield

    @property
    def job_file(self) -> Path:
        """The job as resolved, with every default written out."""
        return self.path / "job.conf"

    @property
    def versions(self) -> Path:
        """What the run runs on: versions and machine."""
        return self.path / "versions.json"

    @property
    def summary(self) -> Path:
        """What came of the run."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """The same, as a page for people."""
        return self.path / "report.html"

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

    def optimizer_state(self, round_number: int) -> Path:
        """What the server's optimizer remembers after a round."""
        return self.checkpoints / f"round-{round_number:04d}.optimizer.safetensors"

    def updates(self, round_number: int) -> Path:
        """The folder of the updates of a round that wait to be folded."""
        return self.path / "updates" / f"round-{round_number:04d}"

    def forget_updates(self, but: int) -> None:
        """Remove the updates of all rounds but one, which servers that were killed have left."""
        kept = self.updates(but)
        for folder in kept.parent.glob("round-*"):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)

    def site(self, name: str) -> Path:
        """The folder of a site's own outputs and state."""
        return self.sites / name

    def site_log(self, name: str) -> Path:
        """What a site's script prints."""
        return self.site(name) / "log.txt"

    def log(self, process: str) -> Path:
        """What a process that is not a site prints; it is not kept if that is nothing."""
        return self.path / f"{process}.log"

    def write(self, path: Path, text: str) -> None:
        """Write a small file of the run such that it is whole and durable, or as it was before.

        Raises:
            SimulationError: the disk refused it.
        """
        try:
            write_whole(path, text)
        except OSError as error:
            raise SimulationError(
                f"{path} cannot be written: {error.strerror}; put that right, and go on with "
                "--resume"
            ) from error

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

    def leftovers(self, round_number: int | None) -> list[Path]:
        """What a run made that has to go before it goes on from the model of a round.

        That is what later rounds left, whole or not, and what only a run that has ended has.

        Args:
            round_number: of that model; None if there is none.
        """
        kept = -1 if round_number is None else round_number
        found = []
        for path in sorted(self.checkpoints.iterdir()):
            match = _OF_ROUND.fullmatch(path.name)
            if match is not None and (int(match[1]) > kept or match[2]) and not path.is_dir():
                found.append(path)
        ends = [self.final_model, self.summary]
        temporary = [temporary_of(path) for path in (self.job_file, self.versions, *ends)]
        return found + [path for path in (*ends, *temporary) if path.is_file()]

    def publish_final_model(self, round_number: int) -> None:
        """Give the checkpoint of the last round its second name.

        One that was published before is replaced. It is never written to: it may be another
        checkpoint's second name.
        """
        temporary = temporary_of(self.final_model)
        temporary.unlink(missing_ok=True)
        try:
            os.link(self.checkpoint(round_number), temporary)
        except OSError:
            # Not every file system has hard links.
            shutil.copy2(self.checkpoint(round_number), temporary)
            sync_file(temporary)
        temporary.replace(self.final_model)
        # If both were names of one file already, the system has left both of them.
        temporary.unlink(missing_ok=True)
        sync_directory(self.path)


def _newest(job_name: str) -> Path | None:
    """The run of a job that was begun last below the working directory."""
    runs = Path("runs").absolute()
    name = re.compile(re.escape(job_name) + r"-(\d{8}-\d{6})(?:-(\d+))?")
    found = []
    for path in runs.iterdir() if runs.is_dir() else ():
        match = name.fullmatch(path.name)
        if match is not None and path.is_dir():
            found.append(((match[1], int(match[2] or 1)), path))
    return max(found)[1] if found else None


def _made(path: Path) -> Path:
    """Make a folder of this name, or with a number behind it where a run of the same second did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with suppress(FileExistsError):
            candidate.mkdir()
            return candidate
    raise AssertionError("count() has no end")
