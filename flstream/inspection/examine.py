"""Examination of a checkpoint or run directory: contents, statistics, difference, verification."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstream.errors import CheckpointError
from flstream.inspection.difference import Difference, find_difference
from flstream.inspection.overview import (
    CHUNK_BYTES,
    Inspection,
    Order,
    inspect_checkpoint,
    matches,
)
from flstream.inspection.run_outline import (
    RunOutline,
    ScoredModels,
    checkpoints_of,
    read_outline,
    read_scored_models,
)
from flstream.inspection.statistics import Statistics, tensor_statistics
from flstream.inspection.tree import Module, build_tree
from flstream.inspection.verification import Verification, verify, verify_body
from flstream.model.body import Scratch
from flstream.model.formats.opening import check_file, open_checkpoint
from flstream.runs.model_files import ModelFile, bodies_beside
from flstream.runs.run_directory import RunDirectory


class Request(NamedTuple):
    """Options of an examination.

    Attributes:
        path: path of a checkpoint of any format, or of a run directory.
        filters: shell patterns of the tensor names to include; empty for all.
        order: order of the tensors.
        chunk_size: maximum frame size in bytes, a multiple of 16.
        tree: whether to group the tensors by module.
        stats: whether to compute statistics of each tensor.
        diff: path of another checkpoint or run directory to compare with; None for none.
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
    """A checkpoint in a run directory.

    Attributes:
        round: round in which the model was written; 0 for the initial model.
        path: path of the file.
        bytes: size of the file in bytes.
        digest: digest of the model in the run's journal; empty if it has none.
        metrics: evaluation metrics of the model, by name.
        bodies: digests of the bodies beside it in the run's journal, by name, such as that of the
            server optimizer's state.
        step: number of models that the round had written before it; None for the newest of the
            round.
    """

    round: int
    path: Path
    bytes: int
    digest: str
    metrics: Mapping[str, float | None]
    bodies: Mapping[str, str] = {}
    step: int | None = None


class InspectedRun(NamedTuple):
    """A run directory and its checkpoints.

    Attributes:
        path: path of the run directory.
        job: name of the job; empty if there is neither a journal nor a summary.
        status: status of the run; empty if there is neither a journal nor a summary.
        rounds_planned: number of rounds of the job; 0 if not known.
        rounds_completed: number of the last completed round.
        checkpoints: existing checkpoints, by rising round.
        final_model: path of the final model; None if there is none.
        scored: What its sites have scored across sites; None if nothing.
    """

    path: Path
    job: str
    status: str
    rounds_planned: int
    rounds_completed: int
    checkpoints: tuple[RunCheckpoint, ...]
    final_model: Path | None
    scored: ScoredModels | None = None

    def document(self) -> dict[str, Any]:
        """Convert the record to JSON."""
        return {
            **self._asdict(),
            "path": str(self.path),
            "checkpoints": [{**e._asdict(), "path": str(e.path)} for e in self.checkpoints],
            "final_model": None if self.final_model is None else str(self.final_model),
            "scored": None if self.scored is None else self.scored._asdict(),
        }


class Findings(NamedTuple):
    """Results of an examination; None for those that were not requested.

    Attributes:
        inspection: contents of the checkpoint's headers.
        run: the run directory; None if the path is a file.
        tree: modules of the model.
        statistics: statistics of the tensors, by name.
        difference: difference from the other checkpoint.
        verified: files that were verified.
    """

    inspection: Inspection
    run: InspectedRun | None = None
    tree: Module | None = None
    statistics: Mapping[str, Statistics] | None = None
    difference: Difference | None = None
    verified: Sequence[Verification] | None = None

    def document(self) -> dict[str, Any]:
        """Convert the results to JSON."""
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
    """Examine a checkpoint or run directory.

    Memory holds headers and a few blocks of tensors, whatever the size of the files.

    Args:
        request: the path and the options.

    Returns:
        The requested results.

    Raises:
        CheckpointError: a file cannot be read, is not sound, or is not what its run wrote.
        LayoutError: a file has a tensor that a body cannot have.
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
    # First, since an unsound file makes the rest pointless.
    if request.verify:
        findings = findings._replace(verified=_verify(inspection, run))
    if request.stats:
        stats = {spec.name: tensor_statistics(file, spec, scratch) for spec in inspection.tensors}
        findings = findings._replace(statistics=stats)
    if request.diff is not None:
        other = open_checkpoint(model_at(request.diff))
        layouts = (file.layout, other.layout)
        names = [n for each in layouts for n in each.names]
        wanted = {name for name in names if matches(name, request.filters)}
        difference = find_difference(file, other, str(other.path), wanted)
        findings = findings._replace(difference=difference)
    return findings


def model_at(path: Path) -> Path:
    """Return the file to examine: the path itself, or the latest model of a run directory.

    Raises:
        CheckpointError: there is no such file, or no model in the folder.
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
    return list(checkpoints.values())[-1]


def read_run(path: Path) -> InspectedRun:
    """Read what a run directory has: its job, status and checkpoints.

    Raises:
        CheckpointError: the journal is damaged.
    """
    run = RunDirectory(path)
    journal = read_outline(run) or RunOutline(run.events, "", "", 0, 0, {}, {})
    checkpoints = []
    for file, file_path in checkpoints_of(run).items():
        check_file(file_path)
        known = journal.record_of(file, run)
        is_last = known is not None and file.step is None
        checkpoints.append(
            RunCheckpoint(
                file.round,
                file_path,
                file_path.stat().st_size,
                known.digest if known else "",
                journal.metrics.get(file.round, {}) if is_last else {},
                bodies_beside(known) if known else {},
                file.step,
            )
        )
    final = run.final_model if os.path.isfile(run.final_model) else None
    last = max((each.round for each in checkpoints), default=0)
    completed = journal.completed if journal.models else last
    return InspectedRun(
        path,
        journal.job,
        journal.status,
        journal.planned,
        completed,
        tuple(checkpoints),
        final,
        read_scored_models(run.cross_site_results),
    )


def _verify(inspection: Inspection, run: InspectedRun | None) -> list[Verification]:
    """Verify the inspected checkpoint, and all checkpoints of a run directory.

    The bodies beside them are verified as well, since a run resumes from them too. A file with two
    names is read once.
    """
    file = inspection.file
    checkpoints = run.checkpoints if run is not None else ()
    due = [each.path for each in checkpoints if _identity(each.path) != _identity(file.path)]
    bodies = _verify_bodies(run) if run is not None else []
    return [verify(file), *(verify(open_checkpoint(path)) for path in due), *bodies]


def _verify_bodies(run: InspectedRun) -> list[Verification]:
    directory, found = RunDirectory(run.path), []
    for each in run.checkpoints:
        # A body is removed before its checkpoint, so a run that was killed in between is sound.
        is_last = each is run.checkpoints[-1]
        for body, digest in each.bodies.items():
            file = ModelFile(each.round, each.step, body)
            if is_last or (directory.checkpoints / file.name).exists():
                found.append(verify_body(directory, file, digest))
    return found


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
