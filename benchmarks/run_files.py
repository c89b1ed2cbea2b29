"""Content of a run directory that a resume needs: models, site states and the journal."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import NamedTuple

from simulating import records

_CHECKPOINT = re.compile(r"round-(\d+)\.safetensors")
# Files to which a resume that is refused may have added lines.
_GROWING = ("events.jsonl", "memory.jsonl")


class KeptRun(NamedTuple):
    """Content of the directory of a run that was killed.

    Attributes:
        path: Path of the run directory.
        finished: Rounds whose models are durable, with 0 for the initial model, before any damage.
        checkpoints: Models on disk, by round.
        states: Folders of site states on disk, by site and round of the training that left it.
        trainings: Rounds in which each site has trained and kept its state, in order.
    """

    path: Path
    finished: list[int]
    checkpoints: dict[int, Path]
    states: dict[tuple[str, int], Path]
    trainings: dict[str, list[int]]

    @classmethod
    def of(cls, path: Path) -> KeptRun:
        """Read a run directory."""
        checkpoints = {
            int(found[1]): file
            for file in (path / "checkpoints").iterdir()
            if (found := _CHECKPOINT.fullmatch(file.name))
        }
        states = {}
        for file in path.glob("sites/*/state/*/momentum.json"):
            # Such a one is not finished, or is being removed: it is of no training.
            if file.parent.suffix != ".tmp":
                number = json.loads(file.read_text())["round"]
                states[file.parent.parent.parent.name, number] = file.parent
        trainings: dict[str, set[int]] = {}
        for event in records(path / "events.jsonl"):
            if event["kind"] == "site_update":
                trainings.setdefault(event["site"], set()).add(event["round"])
        # An update of which the journal does not know yet may have left a state.
        for site, number in states:
            trainings.setdefault(site, set()).add(number)
        ordered = {site: sorted(rounds) for site, rounds in trainings.items()}
        return cls(path, recorded_rounds(path), checkpoints, states, ordered)

    def recorded_rounds(self) -> list[int]:
        """Return the rounds whose models the journal has now, with 0 for the initial model."""
        return recorded_rounds(self.path)


def recorded_rounds(path: Path) -> list[int]:
    """Return the rounds whose models a run's journal has, with 0 for the initial model."""
    journal = records(path / "events.jsonl")
    initial = [0 for event in journal if event["kind"] == "model_ready"]
    finished = {event["round"] for event in journal if event["kind"] == "round_finished"}
    effects = [event for event in journal if event["kind"] == "effect"]
    made = {event["model"]["round"] for event in effects if event.get("model")}
    # A journal without a record of an effect is of a version that went on after whole rounds.
    return initial + sorted(finished & made if effects else finished)


def flip(file: Path, chance: random.Random) -> None:
    """Change one byte of a safetensors file's body."""
    with file.open("r+b") as opened:
        header = 8 + int.from_bytes(opened.read(8), "little")
        position = chance.randrange(header, file.stat().st_size)
        opened.seek(position)
        (byte,) = opened.read(1)
        opened.seek(position)
        opened.write(bytes([byte ^ 0x40]))


def files_of(path: Path) -> dict[str, bytes]:
    """Return the content of every file of a folder, by relative path."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def changes(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Return the files that were removed or altered.

    Lines that were added to a journal do not count, nor the removal of a last line that was torn.
    """
    changed = []
    for name, content in before.items():
        now = after.get(name)
        if name in _GROWING:
            content = content[: content.rfind(b"\n") + 1]
            now = None if now is None else now[: len(content)]
        if now != content:
            changed.append(name)
    return changed
