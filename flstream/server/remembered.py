"""The effect that keeps bytes in the journal, which a replay does not compute again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flstream.errors import WorkflowError
from flstream.server.arguments import check_name

if TYPE_CHECKING:
    from flstream.server.run_state import RunState

_MOST_BYTES = 1 << 20


def remembered(state: RunState, name: str, compute: Callable[[], bytes]) -> bytes:
    """Compute bytes once; see :meth:`flstream.server.run.Run.remember`."""
    check_name("remember", name)

    def do(_: int) -> tuple[bytes, None]:
        value = compute()
        if not isinstance(value, bytes) or len(value) > _MOST_BYTES:
            raise WorkflowError(
                f"run.remember({name!r}) computed what is no bytes, or more than {_MOST_BYTES:,} "
                "of them; return fewer, and keep the rest in a file"
            )
        return value, None

    return state.journal.once("remember", state.round, f"remember({name})", name, do, bytes).result
