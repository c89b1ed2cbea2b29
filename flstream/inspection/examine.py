"""Examination of a checkpoint or run directory: contents, statistics, difference, verification."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from flstream.errors import CheckpointError
from flstream.inspection.contents import (
    CHUNK_BYTES,
    Count,
    Order,
    StreamingCost,
    TensorRow,
    count_dtypes,
    count_modules,
    matches,
    matching,
)
from flstream.inspection.difference import Difference, find_difference
from flstream.inspection.runs import InspectedRun, checkpoint_files, read_run
from flstream.inspection.statistics import tensor_statistics
from flstream.inspection.verification import Verification, verify_checkpoint, verify_run
from flstream.model.body import Scratch
from flstream.model.formats.opening import check_file, open_checkpoint
from flstream.runs.run_directory import RunDirectory


class Findings(msgspec.Struct, frozen=True):
    """Results of an examination; what was not requested is unset.

    Attributes:
        path: path of the checkpoint.
        format: name of its format.
        files: paths of the files that have its tensors.
        file_bytes: bytes of all its files.
        tensors: tensors that match the filters, in the requested order.
        total: counts over all tensors.
        shown: counts over the tensors that match the filters.
        dtypes: counts over all tensors by safetensors type code, by falling size.
        tied: names of the tensors in ``tensors``, by the further names that are tied to them.
        header_bytes: bytes of its files that are not tensors.
        metadata: strings that the file has beside its tensors, by key.
        streaming: cost of streaming the whole model.
        run: the run directory, if the path is one.
        modules: counts over the tensors of each module.
        diff: difference from the other checkpoint.
        verified: files that were verified.
    """

    path: Path
    format: str
    files: Sequence[Path]
    file_bytes: int
    tensors: Sequence[TensorRow]
    total: Count
    shown: Count
    dtypes: Mapping[str, Count]
    tied: Mapping[str, str]
    header_bytes: int
    metadata: Mapping[str, str]
    streaming: StreamingCost
    run: InspectedRun | UnsetType = UNSET
    modules: Sequence[Count] | UnsetType = UNSET
    diff: Difference | UnsetType = UNSET
    verified: Sequence[Verification] | UnsetType = UNSET


def examine(
    path: Path,
    *,
    filters: Collection[str] = (),
    order: Order = "file",
    chunk_size: int = CHUNK_BYTES,
    tree: bool = False,
    stats: bool = False,
    diff: Path | None = None,
    verify: bool = False,
) -> Findings:
    """Examine a checkpoint or run directory.

    Memory holds headers and a few blocks of tensors, whatever the size of the files.

    Args:
        path: path of a checkpoint of any format, or of a run directory.
        filters: shell patterns of the tensor names to include; empty for all.
        order: order of the tensors: as in the file, by falling size, or by name.
        chunk_size: maximum frame size in bytes, a multiple of 16.
        tree: whether to count the tensors of each module.
        stats: whether to compute statistics of each tensor.
        diff: path of another checkpoint or run directory to compare with; None for none.
        verify: whether to read and check everything.

    Raises:
        CheckpointError: a file cannot be read, is not sound, or is not what its run wrote.
        LayoutError: a file has a tensor that a body cannot have.
        UsageError: no tensor matches a pattern.
    """
    run = read_run(path) if os.path.isdir(path) else None
    file, scratch = open_checkpoint(model_at(path)), Scratch()
    layout, tensors = file.layout, matching(file, filters, order)
    verified: list[Verification] | UnsetType = UNSET
    difference: Difference | UnsetType = UNSET
    if verify:  # first, since an unsound file makes the rest pointless
        verified = [verify_checkpoint(file), *(verify_run(run, file.path) if run else ())]
    rows = [
        TensorRow.of(spec, tensor_statistics(file, spec, scratch) if stats else UNSET)
        for spec in tensors
    ]
    if diff is not None:
        other = open_checkpoint(model_at(diff))
        both = (*layout.names, *other.layout.names)
        wanted = {name for name in both if matches(name, filters)}
        difference = find_difference(file, other, str(other.path), wanted)
    names = {spec.name for spec in tensors}
    as_it_lies = file.format == "safetensors" and layout.is_canonical
    return Findings(
        path=file.path,
        format=file.format,
        files=file.files,
        file_bytes=file.file_bytes,
        tensors=rows,
        total=Count.of(layout.tensors),
        shown=Count.of(tensors),
        dtypes=count_dtypes(layout.tensors),
        tied={alias: name for alias, name in layout.aliases.items() if name in names},
        header_bytes=file.header_bytes,
        metadata=file.metadata,
        streaming=StreamingCost.of(layout, chunk_size, as_it_lies=as_it_lies),
        run=run or UNSET,
        modules=count_modules(tensors) if tree else UNSET,
        diff=difference,
        verified=verified,
    )


def model_at(path: Path) -> Path:
    """Return the file to examine: the path itself, or the latest model of a run directory.

    Raises:
        CheckpointError: there is no such file, or no model in the folder.
    """
    if not os.path.isdir(path):
        check_file(path)
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


def as_document(record: msgspec.Struct) -> dict[str, Any]:
    """Convert a record of an inspection to JSON, with complex numbers as lists of two."""

    def convert(value: Any) -> Any:
        return [value.real, value.imag] if isinstance(value, complex) else str(value)

    document: dict[str, Any] = msgspec.to_builtins(record, enc_hook=convert)
    return document
