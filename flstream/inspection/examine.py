"""Examination of a checkpoint or run directory."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import UNSET, UnsetType

from flstream.errors import CheckpointError
from flstream.inspection.numbers import Difference, TensorRow, find_difference, tensor_statistics
from flstream.inspection.runs import (
    InspectedRun,
    Verification,
    checkpoint_files,
    inspect_run,
    verify_checkpoint,
    verify_run,
)
from flstream.model.checkpoint import regular_size
from flstream.model.formats import open_checkpoint
from flstream.model.layout import TensorInfo
from flstream.model.source import Scratch
from flstream.runs.run_directory import RunDirectory


class Count(msgspec.Struct, frozen=True):
    """Counts over some tensors."""

    tensors: int
    parameters: int
    bytes: int

    @classmethod
    def of(cls, specs: Collection[TensorInfo]) -> Self:
        """Count some tensors, their elements and their bytes."""
        parameters = sum(spec.elements for spec in specs)
        return cls(len(specs), parameters, sum(spec.nbytes for spec in specs))


class StreamingCost(msgspec.Struct, frozen=True):
    """Cost of streaming a model once."""

    chunk_size: int  # maximum frame size in bytes
    chunks: int
    as_it_lies: bool  # the file has the order in which bytes are streamed; else a run reorders


class Findings(msgspec.Struct, frozen=True):
    """Results of an examination; unset where they were not requested."""

    path: Path
    format: str
    files: Sequence[Path]  # files that have the tensors
    file_bytes: int  # bytes of all files
    tensors: Sequence[TensorRow]
    total: Count
    dtypes: Mapping[str, Count]  # by type code, by falling size
    tied: Mapping[str, str]  # tensors by the further names that are tied to them
    header_bytes: int  # bytes of all files that are not tensors
    metadata: Mapping[str, str]
    streaming: StreamingCost  # of the whole model
    run: InspectedRun | UnsetType = UNSET  # where the path is a run directory
    diff: Difference | UnsetType = UNSET
    verified: Sequence[Verification] | UnsetType = UNSET  # files that were found sound


def examine(
    path: Path,
    *,
    chunk_size: int = 2 << 20,
    stats: bool = False,
    diff: Path | None = None,
    verify: bool = False,
) -> Findings:
    """Examine a checkpoint or run directory.

    Memory holds headers and a few blocks of tensors, whatever the size of the files; of .npz, the
    largest array.

    Args:
        path: Path of a checkpoint of any format, or of a run directory.
        chunk_size: Maximum frame size in bytes, a multiple of 16.
        stats: Whether to compute statistics of each tensor.
        diff: Path of another checkpoint or run directory to compare with; None for none.
        verify: Whether to read and check everything.

    Raises:
        CheckpointError: A file cannot be read, is not sound, or is not what its run wrote.
        LayoutError: A file has a tensor that a body cannot have.
        SimulationError: The run's journal is damaged.
    """
    run = inspect_run(path) if os.path.isdir(path) else None
    file, scratch = open_checkpoint(model_at(path)), Scratch()
    layout = file.layout
    verified: list[Verification] | UnsetType = UNSET
    difference: Difference | UnsetType = UNSET
    if verify:  # first, since an unsound file makes the rest pointless
        verified = [verify_checkpoint(file), *(verify_run(run, file.path) if run else ())]
    rows = [
        TensorRow.of(spec, tensor_statistics(file, spec, scratch) if stats else UNSET)
        for spec in layout.tensors
    ]
    if diff is not None:
        other = open_checkpoint(model_at(diff))
        difference = find_difference(file, other, str(other.path))
    as_it_lies = file.format == "safetensors" and layout.is_canonical
    return Findings(
        path=file.path,
        format=file.format,
        files=file.files,
        file_bytes=file.file_bytes,
        tensors=rows,
        total=Count.of(layout.tensors),
        dtypes=_count_dtypes(layout.tensors),
        tied=layout.aliases,
        header_bytes=file.header_bytes,
        metadata=file.metadata,
        streaming=StreamingCost(chunk_size, -(-layout.nbytes // chunk_size), as_it_lies),
        run=run or UNSET,
        diff=difference,
        verified=verified,
    )


def model_at(path: Path) -> Path:
    """Return the file to examine: the path, or the latest model of a run directory."""
    if not os.path.isdir(path):
        regular_size(path)
        return path
    run = RunDirectory(path)
    if run.final_model.is_file():
        return run.final_model
    files = checkpoint_files(run)
    if not files:
        raise CheckpointError(
            f"{path} is a folder without a model of a run in it; name a file of tensors or an index"
        )
    return run.checkpoints / files[-1].name


def _count_dtypes(tensors: Sequence[TensorInfo]) -> dict[str, Count]:
    """Count tensors by their safetensors type code, in the order of falling size."""
    codes = dict.fromkeys(spec.dtype for spec in tensors)
    counts = {code: Count.of([spec for spec in tensors if spec.dtype == code]) for code in codes}
    return dict(sorted(counts.items(), key=lambda item: -item[1].bytes))


def as_document(record: msgspec.Struct) -> Any:
    """Convert a record of an inspection to JSON, with complex numbers as lists of two."""

    def convert(value: Any) -> Any:
        return [value.real, value.imag] if isinstance(value, complex) else str(value)

    return msgspec.to_builtins(record, enc_hook=convert)
