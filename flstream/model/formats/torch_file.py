"""Files of ``torch.save``, mapped and loaded as weights only, so that no code in them is run."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import warnings
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flstream.errors import CheckpointError, LayoutError
from flstream.model.formats.archive import AGAIN, Archive, fill
from flstream.model.formats.file import Format, check_expansion, read_parts
from flstream.model.formats.fortran import FortranArray
from flstream.model.formats.nested import flatten
from flstream.model.layout import TensorInfo
from flstream.model.memory import MemoryBody

if TYPE_CHECKING:
    import torch


# The pickle has the places of the tensors; 100,000 of them take less. The objects made from it are
# many times its size.
_MOST_PICKLE_BYTES = 16 << 20


class _Place(NamedTuple):
    """The place of a tensor in the mapped file.

    Attributes:
        offset: Offset in bytes of its first element in the file.
        order: Order of its elements in the file: C, Fortran, or neither.
        part: Mapping that has its storage.
        address: Address of its storage in memory.
        length: Length of its storage in bytes.
    """

    offset: int
    order: Literal["C", "F", "other"]
    part: Mapped
    address: int
    length: int


class TorchFile:
    """The tensors of a ``.pt``, ``.pth`` or ``.bin`` file, by their paths in the saved value.

    Keys of nested tables are joined by dots. Numbers and texts become metadata, and all other
    values are ignored.

    Raises:
        CheckpointError: The file is not sound, is in torch's format before 1.6, or loading it would
        run code.
        LayoutError: A tensor is sparse, quantised or of a type that a body cannot hold.
    """

    format: Format = "torch"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = _archive(path)
        self._tensors, self.metadata = flatten(_load(path), str(path))
        try:
            self._body = MemoryBody.of(self._tensors)
        except LayoutError as error:
            raise LayoutError(f"{path}: {error}") from error
        self.layout = self._body.layout
        self.files = (path,)
        self.file_bytes = self._archive.file_bytes
        data = [member for name, member in self._archive.members.items() if _holds_data(name)]
        self.header_bytes = self.file_bytes - sum(member.stored for member in data)
        check_expansion(path, self.layout, self.file_bytes)
        self._places = self._locate()
        self._turned: tuple[str, FortranArray] | None = None

    def _locate(self) -> dict[str, _Place]:
        """Find the places in the file of the tensors that are mapped from it.

        Raises:
            CheckpointError: A tensor goes beyond the archive's member that it begins in.
        """
        mapped = mapped_parts(self._archive.fd)
        members = sorted(self._archive.members.values(), key=lambda member: member.start)
        starts = [member.start for member in members]
        places = {}
        for spec in self.layout.tensors:
            value = self._tensors[spec.name]
            # A lazily conjugated or negated tensor shows other bits than it stores.
            if not spec.nbytes or value.is_conj() or value.is_neg():
                continue
            storage = value.untyped_storage()
            address, length = storage.data_ptr(), storage.nbytes()
            part = next((each for each in mapped if each.start <= address < each.stop), None)
            if part is None:
                continue
            begin = address - part.start + part.offset
            member = members[max(bisect_right(starts, begin) - 1, 0)]
            if not member.start <= begin <= member.start + member.stored - length:
                raise CheckpointError(
                    f"{self.path}: tensor {spec.name!r} goes beyond what was stored for it; {AGAIN}"
                )
            offset = begin + value.data_ptr() - address
            places[spec.name] = _Place(offset, _order(value), part, address, length)
        return places

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``."""
        read_parts(self.layout, start, stop, into, self._read)

    def _read(self, spec: TensorInfo, view: memoryview, offset: int) -> None:
        # Bytes read through a mapping count as this process's memory, so that is the last resort.
        place = self._places.get(spec.name)
        if place is not None and place.order == "C":
            fill(self.path, self._archive.fd, view, place.offset + offset)
            return
        if place is not None and place.order == "F":
            if self._turned is None or self._turned[0] != spec.name:
                where = f"{self.path}: tensor {spec.name!r}"
                turned = FortranArray(spec, where, self._archive.fd, place.offset)
                self._turned = spec.name, turned
            self._turned[1].read_into(view, offset)
            return
        start = spec.start + offset
        self._body.read(start, start + len(view), view)
        if place is not None:
            drop_pages(place.part, place.address, place.length)

    def check(self) -> list[str]:
        """Check the archive, and describe what was checked when it was opened."""
        return [
            self._archive.check(),
            "its pickle names nothing but tensors and plain values, and no code was run",
            "every tensor lies within what was stored for it",
        ]


def _holds_data(name: str) -> bool:
    return re.fullmatch(r"[^/]+/data/[^/]+", name) is not None


def _archive(path: Path) -> Archive:
    """Open the file as an archive, and refuse one that torch should not load."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"PK\3\4":
        old = magic[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
        what = "a pickle, as torch wrote before 1.6" if old else "no file of torch.save"
        raise CheckpointError(
            f"{path} is {what}; save it again with torch.save of a current version"
        )
    archive = Archive(path)
    pickles = [member for name, member in archive.members.items() if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError(
            f"{path} is an archive without one data.pkl, so torch.save did not write it; "
            "name the archive by what it is, such as .npz"
        )
    if pickles[0].size > _MOST_PICKLE_BYTES:
        raise CheckpointError(
            f"{path} has {pickles[0].size} bytes of pickle, more than tensors take; save only the "
            "state dict"
        )
    for name, member in archive.members.items():
        if member.compressed:
            raise CheckpointError(
                f"{path}: the member {name!r} is compressed, so it cannot be mapped; "
                "save it again with torch.save"
            )
        if name.endswith("/byteorder") and archive.head(member, 16) != b"little":
            raise CheckpointError(
                f"{path} has the bytes of its numbers in another order than this machine; "
                "save it on one that is little-endian"
            )
    return archive


def _load(path: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # A pickle can make torch's own code fail with any error.
    except Exception as error:
        text = str(error)
        named = re.search(r"GLOBAL ([\w.]+)", text)
        if named is not None:
            raise CheckpointError(
                f"{path} holds {named[1]}, and loading that would run code, which is never done; "
                "save only the state dict"
            ) from error
        # torch writes the reason after its advice, which is to trust the file.
        reason = text.rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0][:200]
        raise CheckpointError(
            f"{path} cannot be loaded by torch: {reason or type(error).__name__}; {AGAIN}"
        ) from error


def _order(value: torch.Tensor) -> Literal["C", "F", "other"]:
    if value.is_contiguous():
        return "C"
    return "F" if value.permute(*reversed(range(value.dim()))).is_contiguous() else "other"


class Mapped(NamedTuple):
    """A part of a file that is mapped into this process.

    Attributes:
        start: Address of its first byte.
        stop: Address after its last byte.
        offset: Offset of its first byte in the file.
    """

    start: int
    stop: int
    offset: int


def mapped_parts(fd: int) -> list[Mapped]:
    """Return the parts of an open file that this process has mapped, as far as the system tells."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    parts = []
    for line in lines:
        addresses, _, offset, where, inode, *_ = line.split(maxsplit=5)
        if (where, int(inode)) == (device, status.st_ino):
            start, stop = (int(each, 16) for each in addresses.split("-"))
            parts.append(Mapped(start, stop, int(offset, 16)))
    return parts


def drop_pages(part: Mapped, address: int, length: int) -> None:
    """Release the pages of a range that was read; reading it again reads the file.

    Args:
        part: Mapping that has the range, and to which nothing was written.
        address: Address of the range's first byte.
        length: Length of the range in bytes.
    """
    first = address - address % mmap.PAGESIZE
    last = min(address + length + -(address + length) % mmap.PAGESIZE, part.stop)
    # If the advice is refused the pages stay, and only the reported memory is larger.
    _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


_libc = ctypes.CDLL(None)
