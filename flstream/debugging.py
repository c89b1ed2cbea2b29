"""Hooks of the inline engine: for waiting threads, failed user code, and a site that is debugged.

Other engines leave all of them as they are.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

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
