"""A Flower app, and the messages between its ServerApp's process and the run's workflow."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import xxhash

from flstream.errors import SimulationError
from flstream.runs.small_files import temporary_of

if TYPE_CHECKING:
    from flstream.compat.flower.messages import Context

Content = bytes
"""Packed records; or, where they are too large for the journal, the name of their file.

Before them is one byte: 0 where they follow, 1 where the name of their file does, which is its
digest.
"""

CLIENT_APP_RAISED = 2
"""Code of Flower's for an exception of a ClientApp."""

ROUNDS = "num-server-rounds"
"""Name of an app's setting that is the job's ``rounds``."""

_ID_BITS = 63

FOLDER = "app"
"""Folder below the run directory."""

_HERE, _IN_FILE = b"\0", b"\1"

# Most bytes of a content that travels in a message, and lies in the journal.
_MOST_BYTES = 64 << 10


class FlowerApp(msgspec.Struct, frozen=True):
    """A Flower app, which travels as JSON in the arguments of a job.

    Attributes:
        folder: Absolute path of its folder.
        serverapp: Its ServerApp, ``package.module:name``.
        clientapp: Its ClientApp.
        config: Its settings (``app.config``). Its number of rounds is that of its folder, whatever
            the job has: a resumed run may have more.
        seed: Seed of the job.
    """

    folder: str
    serverapp: str
    clientapp: str
    config: dict[str, Any]
    seed: int

    @property
    def run_id(self) -> int:
        """Id of the run."""
        return random.Random(f"flstream/flower/run/{self.seed}").getrandbits(_ID_BITS)

    def node_id(self, site: str) -> int:
        """Return the id of a site's node."""
        return random.Random(f"flstream/flower/node/{self.seed}/{site}").getrandbits(_ID_BITS)

    def context(self, node: int, rounds: int | None = None, **facts: Any) -> Context:
        """Return the context of a node.

        Args:
            node: Id of the node.
            rounds: The job's rounds; None for those of the app's folder.
            facts: Further facts of the context.
        """
        from flstream.compat.flower.messages import Context  # imports NumPy

        own = {} if rounds is None or ROUNDS not in self.config else {ROUNDS: rounds}
        return Context(self.run_id, node, run_config={**self.config, **own}, **facts)


class ModelOfRun(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A model of the run, which stays as long as the app refers to it.

    Attributes:
        version: Its version.
        path: Path of its file.
        digest: Its digest.
    """

    version: int
    path: str
    digest: str


class Sent(msgspec.Struct, frozen=True):
    """Message to a site.

    Attributes:
        site: The site.
        category: ``train``, ``evaluate`` or ``query``.
        version: Version of the model that has the message's arrays; None where it has none of one.
        facts: Packed records, metadata and what the answer is to be, as the site finds them.
    """

    site: str
    category: str
    version: int | None
    facts: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """Answer of a site.

    Attributes:
        content: Packed records; None where it has failed.
        failure: Why it has failed.
        code: Code of its error.
    """

    content: Content | None
    failure: str = ""
    code: int = CLIENT_APP_RAISED


Method = Literal["newest", "send", "read", "write_update", "store", "fold", "remember", "report"]
"""Methods of :class:`flstream.compat.flower.program.RunCalls`."""


class AppCall(msgspec.Struct, tag=True, frozen=True):
    """Call of a method of the workflow.

    Attributes:
        method: Name of the method.
        arguments: Its arguments: plain values, and records of this module.
    """

    method: Method
    arguments: Sequence[Any]


class AppResult(msgspec.Struct, frozen=True):
    """Value that a method has returned; None for ``remember`` asks for a :class:`Computed`."""

    value: Any


class Computed(msgspec.Struct, tag=True, frozen=True):
    """Bytes that the app has computed for ``remember``."""

    value: bytes


class AppEnded(msgspec.Struct, tag=True, frozen=True):
    """End of the ServerApp.

    Attributes:
        version: Version of its last model.
        error: Why it has failed; empty where it has not.
    """

    version: int
    error: str


FromApp = AppCall | Computed | AppEnded


def put_content(folder: Path, data: bytes) -> Content:
    """Return a content as it is, if it is small, or the name of a durable file with it."""
    if len(data) <= _MOST_BYTES:
        return _HERE + data
    path = folder / f"{xxhash.xxh3_128_hexdigest(data)}.records"
    if not path.is_file():
        temporary = temporary_of(path.with_suffix(f".{os.getpid()}"))
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    return _IN_FILE + path.name.encode()


def get_content(folder: Path, content: Content) -> bytes:
    """Return a content.

    Raises:
        SimulationError: Its file is gone or damaged; the message names it.
    """
    if content[:1] == _HERE:
        return content[1:]
    path = folder / Path(content[1:].decode()).name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SimulationError(
            f"{path} cannot be read ({error.strerror}), and a message of the app is in it; start a "
            "new run (leave out --resume)"
        ) from error
    if path.stem != xxhash.xxh3_128_hexdigest(data):
        raise SimulationError(f"{path} was changed; start a new run (leave out --resume)")
    return data
