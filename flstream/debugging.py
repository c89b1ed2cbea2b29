"""Hooks of the inline engine, for waiting threads and for failed user code.

Other engines leave both as they are.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Waiting = Callable[[], AbstractContextManager[object]]
Failed = Callable[[BaseException], None]

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
