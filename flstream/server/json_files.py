"""The effect that writes a JSON file into the run directory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import NoneType
from typing import TYPE_CHECKING, Any

import xxhash

from flstream.errors import WorkflowError
from flstream.server.arguments import check_name

if TYPE_CHECKING:
    from flstream.server.run_state import RunState

# Folders of a run that a workflow does not write to.
_TAKEN = frozenset({"checkpoints", "export", "sites", "tensorboard", "updates"})


def write_json(state: RunState, path: str, value: object) -> None:
    """Write a JSON file, or make sure that it is as it was written; see ``Run.write_json``."""
    check_name("write_json", path)
    place = PurePosixPath(path)
    is_inside = not place.is_absolute() and ".." not in place.parts and len(place.parts) > 1
    if not is_inside or place.parts[0] in _TAKEN or place.suffix != ".json":
        raise WorkflowError(
            f"run.write_json() was given the path {path!r}; give it one with a folder of its "
            "own in the run directory, such as results/scores.json"
        )
    try:
        text = json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkflowError(
            f"run.write_json({path!r}) was given what JSON cannot hold: {error}; give it "
            "numbers, text, lists and dicts with names"
        ) from error
    arguments = {"path": path, "digest": xxhash.xxh3_128_hexdigest(text.encode())}
    run = state.context.run
    file = run.path / place

    def write(_: int = 0) -> tuple[None, None]:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkflowError(
                f"run.write_json() was given the path {path!r}, whose folder cannot be made: "
                f"{error.strerror}; give it another one"
            ) from error
        run.write(file, text)
        return None, None

    state.journal.once("write_json", state.round, f"write_json({path})", arguments, write, NoneType)
    if not file.is_file() or file.read_text() != text:  # somebody has changed it since
        write()


def _finite(value: Any) -> Any:
    """A value as JSON has it: null for numbers that are not finite, as in the run's events."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
