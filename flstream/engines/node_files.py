"""Where a node has the files of a run: in the run directory, or in a folder of its own.

A node that does not see the run directory is sent the job's folder, and its workers work as if that
and the run directory were here: every path that they are given is another one. What they print
goes to the launcher, which has it where a run on one machine does.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import xxhash
from msgspec.structs import replace

from flstream.client.site_folder import SPLIT, WORK_FOLDER
from flstream.client.worker_info import WorkerInfo
from flstream.engines.node_messages import NONCE_FILE, PIECE_BYTES, NodeJob, Output
from flstream.model.folder_archive import unpack_folder
from flstream.model.folder_content import remove_folder
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_states import set_aside_work_folder

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


@dataclass(frozen=True)
class LeftFiles:
    """What training code has left in its working folders, and is gone with them.

    Attributes:
        count: How many files.
        first: Path of one of them, relative to the run directory; empty without any.
    """

    count: int = 0
    first: str = ""


class NodeFiles(Protocol):
    """The files of a run on a node."""

    @property
    def job(self) -> NodeJob:
        """What all workers of the node have in common, with paths of this node."""
        ...

    @property
    def sees_run(self) -> bool:
        """Whether the paths are those of the launcher."""
        ...

    def new_worker(self, info: WorkerInfo) -> WorkerInfo:
        """Return the facts about a worker that is to be started, with paths of this node."""
        ...

    def output(self) -> Iterator[Output]:
        """Yield what processes have written since the last time, and the launcher lacks.

        One message a file at most, so that no file that grows keeps others from being sent.
        """
        ...

    def close(self) -> LeftFiles:
        """Remove what is of this node alone."""
        ...


class SharedFiles(NamedTuple):
    """The files of a run on a node that sees the run directory.

    Attributes:
        job: What all workers of the node have in common.
        sees_run: That it does.
    """

    job: NodeJob
    sees_run: bool = True

    def new_worker(self, info: WorkerInfo) -> WorkerInfo:
        """Return the facts as they are."""
        return info

    def output(self) -> Iterator[Output]:
        """Yield nothing."""
        return iter(())

    def close(self) -> LeftFiles:
        """Remove nothing."""
        return LeftFiles()


class OwnFiles:
    """The files of a run in a folder of the node's own, which is removed at the end.

    Args:
        job: As the launcher has sent it.
        archive: The job's folder.
        parent: Absolute path of a folder to make that folder in, which is kept then; None for that
            of temporary files.

    Attributes:
        job: What all workers of the node have in common, with paths of this node.
        sees_run: That it does not.

    Raises:
        OSError: It cannot be made.
        ProtocolError: The archive is none.
    """

    sees_run = False

    def __init__(self, job: NodeJob, archive: IO[bytes], parent: Path | None = None) -> None:
        self._is_kept = parent is not None
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        self._root = Path(tempfile.mkdtemp(prefix="flstream-", dir=parent))
        # A job may go by the name of its folder.
        folder = f"{self._root}/job/{Path(job.folder).name}"
        own = {job.run: f"{self._root}/run", job.folder: folder}
        self._own = own
        # The longer one first, as one may be in the other; and whole names alone, from which no
        # way leads out.
        either = "|".join(re.escape(each) for each in sorted(own, key=len, reverse=True))
        self._theirs = re.compile(rf"(?<![\w.~/-])({either})(?![\w.-]|/\.\.)")
        self.job = self._moved(job)
        self._run = RunDirectory(Path(self.job.run))
        self._sent: dict[Path, int] = {}
        try:
            self._run.sites.mkdir(parents=True)
            (self._root / "job").mkdir()
            unpack_folder(archive, self.job.folder)
        except BaseException:
            self._is_kept = False
            self.close()
            raise

    def new_worker(self, info: WorkerInfo) -> WorkerInfo:
        """Return the facts about a worker that is to be started, with paths of this node.

        Raises:
            SimulationError: What its predecessor has left here cannot be put aside.
        """
        if info.site is not None:
            # As for one on another node, which would find nothing either.
            set_aside_work_folder(self._run.site(info.site))
        return replace(self._moved(info), sees_run=False)

    def output(self) -> Iterator[Output]:
        """Yield what processes have written since the last time, as far as it can be read."""
        for path in sorted(self._run.path.glob("*.log")):
            yield from self._more(path, "worker log", path.stem)
        for folder in sorted(self._run.sites.iterdir()):
            yield from self._more(self._run.site_log(folder.name), "site log", folder.name)
            yield from self._split(folder / SPLIT, folder.name)

    def close(self) -> LeftFiles:
        """Remove the folder, unless it is to be kept."""
        if self._is_kept:
            return LeftFiles()
        count, first = 0, ""
        for path in self._run.sites.glob(f"*/{WORK_FOLDER}/**/*"):
            if path.is_file():
                count, first = count + 1, first or str(path.relative_to(self._run.path))
        with suppress(OSError):  # what cannot be removed is no reason to fail for what is done
            remove_folder(str(self._root))
        return LeftFiles(count, first)

    def _more(
        self, path: Path, kind: Literal["worker log", "site log"], name: str
    ) -> Iterator[Output]:
        # Training code may write anything anywhere; what is no log is none of the run's.
        with suppress(OSError), path.open("rb") as file:
            sent = self._sent.get(path, 0)
            file.seek(sent if sent <= os.fstat(file.fileno()).st_size else 0)  # it was cut short
            if data := file.read(PIECE_BYTES):
                self._sent[path] = file.tell()
                yield Output(kind, name, data)

    def _split(self, path: Path, name: str) -> Iterator[Output]:
        with suppress(OSError):
            found = path.stat()
            if self._sent.get(path) != found.st_mtime_ns and found.st_size <= PIECE_BYTES:
                self._sent[path] = found.st_mtime_ns
                yield Output("split", name, path.read_bytes())

    def _moved(self, record: RecordT) -> RecordT:
        """Return a record of the launcher's with the paths of this node, wherever they stand."""
        plain = msgspec.to_builtins(record, builtin_types=(bytes,))
        return msgspec.convert(self._with_own_paths(plain), type(record))

    def _with_own_paths(self, value: Any) -> Any:
        match value:
            case str():
                return self._theirs.sub(lambda found: self._own[found[1]], value)
            case list() | tuple():
                return [self._with_own_paths(each) for each in value]
            case dict():
                return {key: self._with_own_paths(each) for key, each in value.items()}
        return value


def digests_of(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digest of each file by its path; none of one that cannot be read."""
    found = {}
    for path in paths:
        with suppress(OSError):
            found[str(path)] = xxhash.xxh3_128_hexdigest(path.read_bytes())
    return found


def sees_run(job: NodeJob) -> bool:
    """Whether this node sees the launcher's run directory, and the same code under its paths."""
    with suppress(OSError, ValueError):
        is_seen = (Path(job.run) / NONCE_FILE).read_text() == job.nonce
        return is_seen and digests_of(map(Path, job.files)) == job.files
    return False
