"""Errors of user code as sentences, and the hooks of the inline engine.

Those are for waiting threads, failed user code, and a site that is debugged; other engines leave
them as they are.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from flstream.text import MOST_OF_AN_ERROR, shortened

_PACKAGE = Path(__file__).parent

Waiting = Callable[[], AbstractContextManager[object]]
Failed = Callable[[BaseException], None]


@dataclass
class DebuggedSite:
    """The site whose training ends a run, since it is being debugged.

    Attributes:
        site: Name of the site.
        round: Round of the training, from 1.
        has_trained: Whether its training is over.
        weight: Weight of its answer; None where it has failed, or was stopped in pdb.
        metrics: Metrics of its answer.
        failure: Why it has failed; empty where it has not.
    """

    site: str
    round: int
    has_trained: bool = False
    weight: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    failure: str = ""


_debugged: DebuggedSite | None = None
_waiting: Waiting = nullcontext
_failed: Failed = traceback.print_exception


def waiting() -> AbstractContextManager[object]:
    """Return the context in which a thread waits for other threads or processes."""
    return _waiting()


def code_failed(error: BaseException) -> None:
    """Print the traceback of an error in user code; inline, pdb may stop there.

    Raises:
        BaseException: Inline, where the run ends with it: what ends a thread, or the run.
    """
    _failed(error)


@contextmanager
def hooked(waiting: Waiting, failed: Failed) -> Iterator[None]:
    """Replace the two hooks until the end of the block."""
    global _waiting, _failed
    before = _waiting, _failed
    _waiting, _failed = waiting, failed
    try:
        yield
    finally:
        _waiting, _failed = before


def debugged_site() -> DebuggedSite | None:
    """Return the site that this process debugs; None where it runs a whole job."""
    return _debugged


@contextmanager
def debugging(site: DebuggedSite) -> Iterator[None]:
    """End the inline run of this block once a site has trained."""
    global _debugged
    _debugged = site
    try:
        yield
    finally:
        _debugged = None


def sentence(error: BaseException, source: Path, elsewhere: str = "") -> str:
    """Describe an exception in a sentence, with the line of the training code.

    Args:
        error: The exception.
        source: Path of the training code's file; of this package's own, where that calls other
            code, whose last file is named.
        elsewhere: Place to name if no line of that file is to blame; empty for the file.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if str(source).startswith(f"{_PACKAGE}/"):
        source = _own_file([frame.filename for frame in frames]) or source
    lines = [frame.lineno for frame in frames if frame.filename == str(source)]
    where = f"{source.name}, line {lines[-1]}" if lines else elsewhere or source.name
    # On one line: torch lists what does not fit on lines of their own.
    text = shortened(" ".join(_message(error).split()), MOST_OF_AN_ERROR)
    message = f": {text}" if text else ""
    return f"{where} raised {type(error).__name__}{message}"


def _own_file(files: Sequence[str]) -> Path | None:
    """Return the last file that is of no library; None if there is none."""
    libraries = (f"{_PACKAGE}/", *(f"{path}/" for path in sysconfig.get_paths().values()), "<")
    own = [file for file in files if not file.startswith(libraries)]
    return Path(own[-1]) if own else None


def _message(error: BaseException) -> str:
    """Return an exception's message as text that can be sent; empty without one.

    The code of an exception may fail, too, and its text have half of a surrogate pair.
    """
    try:
        text = str(error)
    except Exception:
        return ""
    return text.encode(errors="backslashreplace").decode()
