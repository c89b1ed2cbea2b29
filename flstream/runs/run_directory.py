"""The run directory, whose shape is a contract for scripts."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from flstream.errors import CheckpointError, SimulationError, UsageError
from flstream.model.descriptors import sync_directory
from flstream.runs.model_files import ModelFile
from flstream.runs.small_files import sync_file, temporary_of, write_whole
from flstream.telemetry.events import ModelRecord
from flstream.telemetry.locks import lock_file

# Contents of a folder whose run was cut off before it had written its job file.
_MADE_FIRST = {
    *("checkpoints", "sites", "events.jsonl", "memory.jsonl"),
    *("job.files.json", "job.files.json.tmp", "job.conf.tmp"),
}
_OF_EFFECT = re.compile(r"effect-(\d{4,})")


class RunDirectory:
    """Files of one run.

    Args:
        path: The folder, absolute.

    Attributes:
        path: The folder.
        is_named: Whether whoever runs the job has named the folder.
        job_file: The job as resolved, with every default written out.
        job_files: Digests of the files that the job named when the run began.
        versions: Versions and machine of the run.
        summary: The summary of the run, for scripts.
        report: The page of the run, for people.
        events: The journal, one event a line.
        memory: Samples of memory, one a line.
        checkpoints: The folder of the models that rounds ended with.
        final_model: The model that the run ended with.
        best_model: The best evaluated model.
        export_files: The folder of what an export has beside the weights, such as config.json.
        sites: The folder of the sites' own folders.
        cross_site_results: Scores of each model at each site, where a workflow asked for them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_named = True
        self.job_file = path / "job.conf"
        self.job_files = path / "job.files.json"
        self.versions = path / "versions.json"
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.events = path / "events.jsonl"
        self.memory = path / "memory.jsonl"
        self.checkpoints = path / "checkpoints"
        self.final_model = path / "global.safetensors"
        self.best_model = path / "best.safetensors"
        self.export_files = path / "export"
        self.sites = path / "sites"
        self.cross_site_results = path / "cross_site" / "cross_val_results.json"

    @classmethod
    def create(
        cls, job_name: str, path: Path | None = None, root: Path = Path("runs")
    ) -> RunDirectory:
        """Make the folder of a new run.

        Args:
            job_name: For the default, ``runs/<job>-<time>`` below the working directory.
            path: The folder to use instead. It may exist if it is empty.
            root: The folder to use instead of ``runs``.

        Raises:
            UsageError: The folder has something in it, or cannot be made.
        """
        named = path or root / f"{job_name}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            run = cls(named.absolute() if path else _new_folder(named.absolute()))
            run.is_named = path is not None
            run.path.mkdir(parents=True, exist_ok=True)
            if any(run.path.iterdir()):
                raise UsageError(
                    f"{named} is not empty; name a new folder with --run-dir, "
                    "since a run never deletes what it did not create"
                )
            run.furnish()
        except OSError as error:
            raise UsageError(
                f"the run directory {named} cannot be made: {error.strerror}"
            ) from error
        return run

    @classmethod
    def reopen(
        cls, job_name: str, path: Path | None = None, root: Path = Path("runs")
    ) -> RunDirectory:
        """Return the folder of a run to resume, or a new one where none has begun.

        Args:
            job_name: For the default, the newest ``runs/<job>-<time>`` below the working directory.
            path: The folder to use instead. It need not exist.
            root: The folder to use instead of ``runs``.

        Raises:
            UsageError: The folder has something else in it than a run, or cannot be used.
        """
        folder = _newest(job_name, root) if path is None else path.absolute()
        if folder is None:
            return cls.create(job_name, root=root)
        run = cls(folder)
        try:
            if run.is_new:
                return cls.create(job_name, folder)
            if lacking := run.lacking():
                raise UsageError(
                    f"{path or folder} is not a run directory, since it lacks {lacking}; "
                    "name one with --run-dir, or leave out --resume to start a new run"
                )
            if not run.job_file.exists():
                run.furnish()
        except OSError as error:
            raise UsageError(
                f"the run directory {path or folder} cannot be used: {error.strerror}"
            ) from error
        return run

    def lacking(self) -> str:
        """Return the missing files and folders of a begun run; empty without any."""
        entries = list(self.path.iterdir()) if self.path.is_dir() else []
        if entries and {path.name for path in entries} <= _MADE_FIRST:
            # Cut off before it had written its job file, it has nothing in its folders and files.
            filled = (
                any(p.iterdir()) if p.is_dir() else p == self.events and p.stat().st_size
                for p in entries
            )
            if not any(filled):
                return ""
        parts = {
            "job.conf": self.job_file.exists(),
            "checkpoints/": self.checkpoints.is_dir(),
            "sites/": self.sites.is_dir(),
        }
        return ", ".join(name for name, exists in parts.items() if not exists)

    def furnish(self) -> None:
        """Make the files that a run begins with, with durable names."""
        self.checkpoints.mkdir(exist_ok=True)
        self.sites.mkdir(exist_ok=True)
        # An event that is durable is of no use in a file that has no name after a power cut.
        self.events.touch()
        sync_directory(self.path)
        sync_directory(self.path.parent)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the folder against other runs until the end of the block.

        The lock ends with this process, however that ends. It is on the file that this process
        writes itself, since a folder cannot be locked on every file system.

        Raises:
            UsageError: Another run is in it.
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
    def is_new(self) -> bool:
        """Whether there is no such folder yet, or an empty one."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    @property
    def is_run(self) -> bool:
        """Whether the folder has a journal or a summary of a run."""
        return self.events.is_file() or self.summary.is_file()

    def checkpoint(self, round_number: int) -> Path:
        """Return the newest model of a round; round 0 is the initial model."""
        return self.checkpoints / ModelFile(round_number).name

    def step_checkpoint(self, round_number: int, step: int) -> Path:
        """Return the path of a model of a round, with its step.

        Args:
            round_number: The round.
            step: Number of models that the round had made before it.
        """
        return self.checkpoints / ModelFile(round_number, step).name

    def model_file(self, record: ModelRecord) -> Path:
        """Return the path of a model by its step; by its round without others.

        So it is of the initial model, and of the last model of a round on a file system that has no
        hard links.
        """
        step = self.step_checkpoint(record.round, record.step)
        return step if step.is_file() else self.checkpoint(record.round)

    def updates(self, effect: int) -> Path:
        """Return the folder of a training's updates that wait for a fold."""
        return self.path / "updates" / f"effect-{effect:04d}"

    def discard_updates(
        self, effect: int | None = None, *, after: int = 0, but: Container[int] = ()
    ) -> None:
        """Remove updates that no fold waits for.

        Args:
            effect: Number of the training's effect; None for all there are.
            after: Number of an effect, of which those before it are kept then, and itself.
            but: Numbers of further trainings whose updates are kept.
        """
        parent = self.updates(0).parent
        folders = parent.glob("effect-*") if effect is None else [self.updates(effect)]
        for folder in folders:
            number = _OF_EFFECT.fullmatch(folder.name)
            if number is not None and int(number[1]) > after and int(number[1]) not in but:
                shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # there are others
            parent.rmdir()

    def site(self, name: str) -> Path:
        """Return the folder of a site's own outputs and state."""
        return self.sites / name

    def last_model(self, site: str) -> Path:
        """Return the path of the last model that a site sent, for a workflow."""
        return self.site(site) / "last.safetensors"

    def site_model(self, site: str) -> Path:
        """Return the path of a site's model that a workflow collected."""
        return self.path / "cross_site" / "models" / f"{site}.safetensors"

    def site_log(self, name: str) -> Path:
        """Return the log of a site's script."""
        return self.site(name) / "log.txt"

    def log(self, process: str) -> Path:
        """Return the log of a process other than a site; empty ones are not kept."""
        return self.path / f"{process}.log"

    def mark_logs(
        self, processes: Iterable[str], sites: Iterable[str], effect: int
    ) -> Iterator[str]:
        """Write into existing logs that the run resumes after an effect.

        Later output stays in them, and comes once more. Yields a sentence for each log that it
        cannot write.
        """
        logs = [*map(self.log, processes), *map(self.site_log, sites)]
        for path in logs:
            try:
                if path.is_file() and path.stat().st_size:
                    with path.open("a") as log:
                        log.write(f"\nflstream: resumed at effect {effect}\n")
            except OSError as error:
                yield f"{path} cannot be written: {error.strerror}; it lacks where the run resumed"

    def write(self, path: Path, text: str) -> None:
        """Write a small file of the run, durable and whole, or leave it as it was.

        Raises:
            SimulationError: The disk refused it.
        """
        try:
            write_whole(path, text)
        except OSError as error:
            raise SimulationError(
                f"{path} cannot be written: {error.strerror}; put that right, and go on with "
                "--resume"
            ) from error

    def withdraw(self) -> None:
        """Remove the files of a run that was refused before it began.

        A folder that somebody has named stays, empty: a run that is asked for once more, with what
        was wrong put right, finds it as it was.
        """
        if self.events.exists() and self.events.stat().st_size:
            return  # it has begun
        self.tidy()
        files = self.job_file, self.job_files, self.versions, self.memory, self.events
        for path in (*files, self.log("ray")):
            path.unlink(missing_ok=True)
        folders = [self.checkpoints, self.sites, *([] if self.is_named else [self.path])]
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()

    def tidy(self) -> None:
        """Remove files that are of no use once a run's processes have ended.

        A process that is killed cannot remove the checkpoint it was writing. Only what this run
        made is touched, and what cannot be removed stays.
        """
        temporary = [path for path, file in self.checkpoint_files() if file.is_temporary]
        for path in (*temporary, *self.path.glob("*.log")):
            with suppress(OSError):
                if path in temporary or path.stat().st_size == 0:
                    path.unlink()

    def leftovers(
        self, models: Sequence[ModelRecord], written: Iterable[tuple[int, int]]
    ) -> list[Path]:
        """Return files of the run to remove before it resumes from some models.

        That is models that do not count any more, with what lies beside them, whatever was being
        written, and what only a run that has ended has. Files that the journal does not know are
        somebody else's, and stay.

        Args:
            models: The models that count.
            written: Round and step of every model that the run has written, or was about to.
        """
        rounds, void = {model.round for model in models}, set[Path]()
        for number, step in {*written} - {(model.round, model.step) for model in models}:
            own, named = self.step_checkpoint(number, step), self.checkpoint(number)
            void.add(own)
            # A round that counts in part may have its name on a model that does not count.
            if number not in rounds or not os.path.lexists(own) or is_same_file(own, named):
                void.add(named)
        # The initial model is written by a process of its own, which the journal says nothing of.
        if self.checkpoint(0) not in map(self.model_file, models):
            void.add(self.checkpoint(0))
        gone = []
        for path, file in self.checkpoint_files():
            model = path.with_name(file._replace(body="").name)
            if model in void and path.is_file() and not path.is_symlink():
                gone.append((model, path != model, path))  # the model, then what lies beside it
        ends = [self.final_model, self.best_model, self.summary]
        temporary = [
            temporary_of(path) for path in (self.job_file, self.job_files, self.versions, *ends)
        ]
        return [
            *(path for *_, path in sorted(gone)),
            *(path for path, file in self.checkpoint_files() if file.is_temporary),
            *(path for path in (*ends, *temporary) if path.is_file()),
        ]

    def checkpoint_files(self) -> list[tuple[Path, ModelFile]]:
        """Return files with names of a run's checkpoints, by name."""
        paths = sorted(self.checkpoints.iterdir()) if self.checkpoints.is_dir() else []
        named = [(path, ModelFile.parse(path.name)) for path in paths]
        return [(path, file) for path, file in named if file is not None and not path.is_dir()]

    @property
    def stored_rounds(self) -> set[int]:
        """Rounds that have a model on disk, in a regular file of its name."""
        files = [file for path, file in self.checkpoint_files() if not path.is_symlink()]
        return {file.round for file in files if file.is_model}

    def publish(self, checkpoint: Path, name: Path) -> None:
        """Give a model's file a second name, such as :attr:`final_model`.

        What was published before is replaced. It is never written to: it may be another
        checkpoint's second name.

        Raises:
            CheckpointError: The disk does not take it.
        """
        temporary = temporary_of(name)
        try:
            temporary.unlink(missing_ok=True)
            try:
                os.link(checkpoint, temporary)
            except OSError:
                # Not every file system has hard links.
                shutil.copy2(checkpoint, temporary)
                sync_file(temporary)
            temporary.replace(name)
            # If both were names of one file already, the system has left both of them.
            temporary.unlink(missing_ok=True)
            sync_directory(name.parent)
        except OSError as error:
            raise CheckpointError(f"{name} cannot be written: {error.strerror}") from error


def _newest(job_name: str, root: Path) -> Path | None:
    """Return the last begun run of a job below a folder."""
    runs = root.absolute()
    name = re.compile(re.escape(job_name) + r"-(\d{8}-\d{6})(?:-(\d+))?")
    runs_of_job = []
    for path in runs.iterdir() if runs.is_dir() else ():
        match = name.fullmatch(path.name)
        if match is not None and path.is_dir():
            runs_of_job.append(((match[1], int(match[2] or 1)), path))
    return max(runs_of_job)[1] if runs_of_job else None


def _new_folder(path: Path) -> Path:
    """Make a folder of this name, or with a number after it where it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with suppress(FileExistsError):
            candidate.mkdir()
            return candidate
    raise AssertionError("count() has no end")


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two names are of one existing file."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def link_or_rename(file: Path, name: Path) -> None:
    """Give a file a second name; a new one where there are no hard links.

    Raises:
        OSError: It cannot be given.
    """
    try:
        os.link(file, name)
    except OSError:
        file.rename(name)
