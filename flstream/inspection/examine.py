"""Everything that is asked about a checkpoint, in one go."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstream.errors import CheckpointError
from flstream.inspection.difference import Difference, find_difference
from flstream.inspection.journal import Journal, checkpoints_of, read_journal
from flstream.inspection.overview import (
    CHUNK_BYTES,
    Inspection,
    Order,
    inspect_checkpoint,
    matches,
)
from flstream.inspection.statistics import Statistics, tensor_statistics
from flstream.inspection.tree import Module, build_tree
from flstream.inspection.verification import Verification, verify, verify_optimizer_state
from flstream.model.body import Scratch
from flstream.model.formats.opening import check_file, open_checkpoint
from flstream.simulator.files.run_directory import RunDirectory


class Request(NamedTuple):
    """What is asked.

    Attributes:
        path: of a checkpoint of any format, or of a run directory.
        filters: patterns of the names to show; none for all.
        order: of the tensors.
        chunk_size: longest frame in bytes.
        tree: whether the modules are to be told.
        stats: whether statistics are.
        diff: another checkpoint or run directory to compare with.
        verify: whether to read and check everything.
    """

    path: Path
    filters: Sequence[str] = ()
    order: Order = "file"
    chunk_size: int = CHUNK_BYTES
    tree: bool = False
    stats: bool = False
    diff: Path | None = None
    verify: bool = False


class RunCheckpoint(NamedTuple):
    """A model of a run.

    Attributes:
        round: after which; 0 is the initial model.
        path: of the file.
        bytes: of the file.
        digest: that the run's journal has for it, or empty.
        metrics: that it was scored with.
        optimizer_state: digest that the journal has for what the server's optimizer remembered
            after the round; empty without one.
    """

    round: int
    path: Path
    bytes: int
    digest: str
    metrics: Mapping[str, float | None]
    optimizer_state: str = ""


class Run(NamedTuple):
    """A run directory.

    Attributes:
        path: of the folder.
        job: name of the job; empty where the run left no journal and no summary.
        status: of the run; empty likewise.
        rounds_planned: rounds that were to be run; 0 if that is not known.
        rounds_completed: the last completed round.
        checkpoints: those that are there, by round.
        final_model: the file of the final model, if it is there.
    """

    path: Path
    job: str
    status: str
    rounds_planned: int
    rounds_completed: int
    checkpoints: tuple[RunCheckpoint, ...]
    final_model: Path | None

    def document(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            **self._asdict(),
            "path": str(self.path),
            "checkpoints": [{**e._asdict(), "path": str(e.path)} for e in self.checkpoints],
            "final_model": None if self.final_model is None else str(self.final_model),
        }


class Findings(NamedTuple):
    """What was found; None stands for what was not asked."""

    inspection: Inspection
    run: Run | None = None
    tree: Module | None = None
    statistics: Mapping[str, Statistics] | None = None
    difference: Difference | None = None
    verified: Sequence[Verification] | None = None

    def document(self) -> dict[str, Any]:
        """All of it for JSON."""
        document = self.inspection.document()
        if self.run is not None:
            document["run"] = self.run.document()
        if self.tree is not None:
            document["modules"] = self.tree.document()
        if self.statistics is not None:
            for tensor in document["tensors"]:
                tensor["stats"] = self.statistics[tensor["name"]].document()
        if self.difference is not None:
            document["diff"] = self.difference.document()
        if self.verified is not None:
            document["verified"] = [each.document() for each in self.verified]
        return document


def examine(request: Request) -> Findings:
    """Find out what is asked. Memory holds headers and a few blocks, whatever the files' size.

    Raises:
        CheckpointError: a file cannot be read, is not sound, or is not what its run wrote.
        LayoutError: a file has a tensor that a body cannot hold.
        UsageError: no tensor matches a pattern.
    """
    run = read_run(request.path) if os.path.isdir(request.path) else None
    inspection = inspect_checkpoint(
        model_at(request.path),
        filters=request.filters,
        order=request.order,
        chunk_size=request.chunk_size,
    )
    file, scratch = inspection.file, Scratch()
    findings = Findings(inspection, run)
    if request.tree:
        findings = findings._replace(tree=build_tree(inspection.tensors))
    # First what may find that the rest is not worth the while.
    if request.verify:
        findings = findings._replace(verified=_verify(inspection, run))
    if request.stats:
        stats = {spec.name: tensor_statistics(file, spec, scratch) for spec in inspection.tensors}
        findings = findings._replace(statistics=stats)
    if request.diff is not None:
        other = open_checkpoint(model_at(request.diff))
        layouts = (file.layout, other.layout)
        names = [n for each in layouts for n in (*each.by_name, *each.aliases)]
        wanted = {name for name in names if matches(name, request.filters)}
        difference = find_difference(file, other, str(other.path), wanted)
        findings = findings._replace(difference=difference)
    return findings


def model_at(path: Path) -> Path:
    """The file that is meant: the path itself, or the latest model of a run directory.

    Raises:
        CheckpointError: there is none.
    """
    if not os.path.isdir(path):
        check_file(path)
        return path
    run = RunDirectory(path)
    if os.path.isfile(run.final_model):
        return run.final_model
    checkpoints = checkpoints_of(run)
    if not checkpoints:
        raise CheckpointError(
            f"{path} is a folder without a model of a run in it; name a file of tensors or an index"
        )
    return checkpoints[max(checkpoints)]


def read_run(path: Path) -> Run:
    """What a run directory holds.

    Raises:
        CheckpointError: its journal is damaged.
    """
    run = RunDirectory(path)
    journal = read_journal(run) or Journal(run.events, "", "", 0, {})
    checkpoints = []
    for number, file in checkpoints_of(run).items():
        check_file(file)
        known = journal.rounds.get(number)
        checkpoints.append(
            RunCheckpoint(
                number,
                file,
                file.stat().st_size,
                known.digest if known else "",
                known.metrics if known else {},
                known.optimizer_state if known else "",
            )
        )
    final = run.final_model if os.path.isfile(run.final_model) else None
    completed = max(journal.rounds, default=max((e.round for e in checkpoints), default=0))
    return Run(
        path, journal.job, journal.status, journal.planned, completed, tuple(checkpoints), final
    )


def _verify(inspection: Inspection, run: Run | None) -> list[Verification]:
    """Verify the checkpoint; of a run directory, every one. A file of two names is read once.

    With a run's checkpoint goes what the server's optimizer remembered: it is resumed from both.
    """
    file = inspection.file
    checkpoints = run.checkpoints if run is not None else ()
    due = [each.path for each in checkpoints if _identity(each.path) != _identity(file.path)]
    states = _verify_states(run) if run is not None else []
    return [verify(file), *(verify(open_checkpoint(path)) for path in due), *states]


def _verify_states(run: Run) -> list[Verification]:
    directory, found = RunDirectory(run.path), []
    for each in run.checkpoints:
        # A state goes before its checkpoint; a run that was killed between the two is sound.
        is_last = each is run.checkpoints[-1]
        is_there = directory.optimizer_state(each.round).exists()
        if each.optimizer_state and (is_there or is_last):
            found.append(verify_optimizer_state(directory, each.round, each.optimizer_state))
    return found


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
