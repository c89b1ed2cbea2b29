"""Where a node has the files of a run: in the run directory, or in a folder of its own.

A node that does not see the run directory is sent the job's folder, and its workers work as if that
and the run directory were here: every path that they are given is another one. What they print
goes to the launcher, which has it where a run on one machine does.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import msgspec

from flstream.client.folder_archive import unpack_folder
from flstream.client.folder_content import remove_folder
from flstream.client.site_folder import SPLIT, WORK_FOLDER
from flstream.engines.node_messages import NONCE_FILE, PIECE_BYTES, NodeJob, Output
from flstream.runs.run_directory import RunDirectory

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


class NodeFiles:
    """The files of a run on a node that sees the run directory.

    Args:
        job: What all workers of the node have in common.

    Attributes:
        job: The same, with paths of this node.
        sees_run: Whether the paths are those of the launcher.
    """

    sees_run = True

    def __init__(self, job: NodeJob) -> None:
        self.job = job

    def moved(self, record: RecordT) -> RecordT:
        """Return a record of the launcher's with the paths of this node."""
        return record

    def output(self) -> Iterator[Output]:
        """Yield what processes have written since the last time, and the launcher lacks."""
        yield from ()

    def close(self) -> list[str]:
        """Remove what is of this node alone.

        Returns:
            Paths of what training code has left there, relative to the run directory.
        """
        return []


class OwnNodeFiles(NodeFiles):
    """The files of a run in a folder of the node's own, which is removed at the end.

    Args:
        job: As the launcher has sent it.
        archive: The job's folder.
        parent: Folder to make that folder in, which is kept then; None for that of temporary files.

    Raises:
        OSError: It cannot be made.
        ProtocolError: The archive is none.
    """

    sees_run = False

    def __init__(self, job: NodeJob, archive: IO[bytes], parent: Path | None = None) -> None:
        self._is_kept = parent is not None
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        self.root = Path(tempfile.mkdtemp(prefix="flstream-", dir=parent))
        own = {job.run: f"{self.root}/run", job.folder: f"{self.root}/job"}
        self._own = own
        # The longer one first, as one may be in the other; and whole names alone.
        either = "|".join(re.escape(each) for each in sorted(own, key=len, reverse=True))
        self._theirs = re.compile(rf"(?<![\w.~/-])({either})(?![\w.-])")
        super().__init__(self.moved(job))
        self._run = RunDirectory(Path(self.job.run))
        self._sent: dict[Path, int] = {}
        try:
            self._run.sites.mkdir(parents=True)
            unpack_folder(archive, self.job.folder)
        except BaseException:
            self.close()
            raise

    def moved(self, record: RecordT) -> RecordT:
        """Return a record of the launcher's with the paths of this node, wherever they stand."""
        plain = msgspec.to_builtins(record, builtin_types=(bytes,))
        return msgspec.convert(self._moved(plain), type(record))

    def output(self) -> Iterator[Output]:
        """Yield what processes have written since the last time."""
        for path in sorted(self._run.path.glob("*.log")):
            yield from self._more(path, "worker log", path.stem)
        for folder in sorted(self._run.sites.iterdir()):
            yield from self._more(self._run.site_log(folder.name), "site log", folder.name)
            path = folder / SPLIT
            with suppress(FileNotFoundError):
                written = path.stat().st_mtime_ns
                if self._sent.get(path) != written:
                    self._sent[path] = written
                    yield Output("split", folder.name, path.read_bytes()[:PIECE_BYTES])

    def close(self) -> list[str]:
        """Remove the folder, unless it was asked for."""
        left = [
            str(path.relative_to(self._run.path))
            for path in sorted(self._run.sites.glob(f"*/{WORK_FOLDER}/**/*"))
            if path.is_file()
        ]
        if self._is_kept:
            return []
        with suppress(OSError):  # what cannot be removed is no reason to fail for what is done
            remove_folder(str(self.root))
        return left

    def _more(
        self, path: Path, kind: Literal["worker log", "site log"], name: str
    ) -> Iterator[Output]:
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(self._sent.get(path, 0))
            while data := file.read(PIECE_BYTES):
                self._sent[path] = file.tell()
                yield Output(kind, name, data)

    def _moved(self, value: Any) -> Any:
        match value:
            case str():
                return self._theirs.sub(lambda found: self._own[found[1]], value)
            case list() | tuple():
                return [self._moved(each) for each in value]
            case dict():
                return {key: self._moved(each) for key, each in value.items()}
        return value


def sees_run(job: NodeJob) -> bool:
    """Whether this node sees the run directory of the launcher, and no other one of its path."""
    try:
        found = (Path(job.run) / NONCE_FILE).read_text()
    except (OSError, ValueError):
        return False
    return found == job.nonce
