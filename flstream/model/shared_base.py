"""A frozen module's tensors in one file, whose pages all processes of a machine share.

The file is a safetensors file with all tensors that a module holds: parameters, buffers (those that
no state dict has, too) and plain attributes. Each begins at a multiple of 64 bytes, with tensors of
padding between, so that none has to be copied out of the mapping.

The mapping is private, of a file that is opened to be read: writing to it changes neither the file
nor another process's tensors. What was written is found and named by
:meth:`SharedBase.check`. With a mapping without the right to write, the process would be killed by
a signal instead, and nobody would know by which parameter.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from flstream.errors import CheckpointError, ClientError, ModelError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.digests import body_digest
from flstream.model.layout import Layout, TensorInfo
from flstream.model.mapped import ALIGNMENT, MappedModel
from flstream.model.memory import MemoryBody
from flstream.model.source import Source
from flstream.model.tensor_view import TensorView, distinct_views
from flstream.telemetry.locks import lock_file

if TYPE_CHECKING:
    import torch

PADDING = "flstream.padding."

Held = Sequence[tuple[str, dict[str, Any]]]
"""Names of a module's tensors, each with the dict that has it under the last part of the name."""


def bases_folder() -> Path:
    """Return the folder of this user's bases, which need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # By the specification, a relative path counts as none.
    root = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return root / "flstream" / "bases"


def base_file(digest: str) -> Path:
    """Return the path of a base's file."""
    return bases_folder() / f"{digest}.safetensors"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of a name in the folder of bases until the end of the block.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    folder = bases_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a folder that can"
        ) from error
    try:
        if not lock_file(lock):
            print("flstream: waits for another run that builds this base", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def held_tensors(
    module: torch.nn.Module,
) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
    """Yield all tensors of a module: the dotted name, the tensor, and the dict that has it.

    Raises:
        ModelError: An attribute is a collection of tensors, which would be left out.
    """
    import torch

    for prefix, part in module.named_modules():
        for holder in (part._parameters, part._buffers, vars(part)):
            for key, value in holder.items():
                name = f"{prefix}.{key}" if prefix else key
                if isinstance(value, torch.Tensor):
                    yield name, value, holder
                    continue
                items = list(value.values()) if isinstance(value, dict) else value
                if value is part._parameters or value is part._buffers:
                    continue
                kinds = torch.Tensor, torch.nn.Module
                if value is part._modules or not isinstance(items, list | tuple):
                    continue
                if any(isinstance(item, kinds) for item in items):
                    raise ModelError(
                        f"the base's attribute {name} is a {type(value).__name__} of tensors or "
                        "modules, which its file cannot hold; register each of them"
                    )


def write_base(module: torch.nn.Module, metadata: Mapping[str, str]) -> tuple[str, Layout]:
    """Write a module's tensors and some strings into the file of their digest.

    A sound file of that digest stays as it is.

    Returns:
        The digest, 32 hexadecimal digits, and the layout.

    Raises:
        LayoutError: A tensor cannot be written; the message names it.
        CheckpointError: The file cannot be written.
    """
    import torch

    tensors: dict[str, Any] = {name: tensor for name, tensor, _ in held_tensors(module)}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():  # sites would compute with other strides, to other bits
            raise ModelError(
                f"the base's tensor {name} is not contiguous, and its file would lose its strides; "
                "let the factory make it contiguous"
            )
    views, ties = distinct_views(tensors, None)
    entries = ((name, view.code, view.shape) for name, view in views.items())
    specs, stop = list[TensorInfo](), 0
    for spec in Layout.of(entries, ties).tensors:
        specs.append(spec._replace(start=stop, stop=stop + spec.nbytes))
        stop += spec.nbytes
        if gap := -stop % ALIGNMENT:
            name = f"{PADDING}{len(specs)}"
            specs.append(TensorInfo(name, "U8", (gap,), stop, stop + gap))
            views[name] = TensorView(name, torch.zeros(gap, dtype=torch.uint8))
            stop += gap
    body = MemoryBody(Layout(specs, ties), tensors, views)
    digest = _digest(body, metadata)
    with locked(digest):
        if not is_sound(digest):
            write_checkpoint(base_file(digest), body, metadata)
            base_file(digest).chmod(0o444)
    return digest, body.layout


def is_sound(digest: str) -> bool:
    """Return whether the file of a digest is there, and whole; it is read to its end."""
    try:
        file = FileSource(base_file(digest))
        return _digest(file, file.metadata) == digest
    except CheckpointError:
        return False


def _digest(source: Source, metadata: Mapping[str, str]) -> str:
    # The metadata counts: the configuration decides what a module computes with its tensors.
    header = source.layout.header(dict(sorted(metadata.items())))
    return xxhash.xxh3_128_hexdigest(header + body_digest(source).encode())


class SharedBase:
    """A base's file, mapped.

    Attributes:
        metadata: Strings of the file.

    Args:
        path: Path of the file.

    Raises:
        CheckpointError: There is no such file, or it is not whole.
    """

    def __init__(self, path: Path) -> None:
        self._file = FileSource(path)
        self.metadata = self._file.metadata
        self._mapped = MappedModel(self._file.fd, str(self._file.path))
        tensors: Mapping[str, Any] = self._mapped.tensors("pytorch")
        self._tensors: dict[str, torch.Tensor] = {
            name: tensor for name, tensor in tensors.items() if not name.startswith(PADDING)
        }
        self._note_versions()

    def fill(self, module: torch.nn.Module) -> Held:
        """Give a module the base's tensors, in the place of its own; parameters are frozen.

        Returns:
            Where they are in the module, for :meth:`refill`.

        Raises:
            ModelError: The module has other tensors; the message names one.
        """
        held = list(held_tensors(module))
        shapes = {name: tensor.shape for name, tensor, _ in held}
        if shapes != {name: tensor.shape for name, tensor in self._tensors.items()}:
            names = sorted(
                name
                for name in shapes.keys() | self._tensors.keys()
                if name not in shapes
                or name not in self._tensors
                or shapes[name] != self._tensors[name].shape
            )
            raise ModelError(
                f"the base is built with other tensors on torch's meta device, such as {names[0]}; "
                "build the same on each device, with the same arguments"
            )
        places = [(name, holder) for name, _, holder in held]
        self.refill(places)
        return places

    def refill(self, held: Held) -> None:
        """Give a module these tensors in the place of those of another base."""
        from torch.nn import Parameter

        frozen: dict[int, Parameter] = {}
        for name, holder in held:
            value, key = self._tensors[name], name.rpartition(".")[2]  # of tied names, the same
            old = holder[key]
            if isinstance(old, Parameter):
                value = frozen.setdefault(id(value), Parameter(value, requires_grad=False))
            holder[key] = value if old.is_meta else value.to(old.device, old.dtype)

    def restore(self) -> None:
        """Give the tensors the file's values again."""
        self._mapped.restore()
        self._note_versions()

    def check(self) -> None:
        """Refuse a base that this process has written to.

        Raises:
            ClientError: A tensor was written to; the message names it.
        """
        names = [name for name, version in self._versions.items() if self._version(name) != version]
        written = names[0] if names else self._written_otherwise()
        if written is None:
            return
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise ClientError(
            f"the code has written to {written!r}{more} of the base, which all sites share "
            "(model.base); train an adapter, or give the module a copy: "
            "Parameter(tensor.clone())"
        )

    def _written_otherwise(self) -> str | None:
        """Return the name of a tensor that NumPy has written, or code by ``.data``; None for none.

        Torch does not count that; the kernel knows the page, and the file what was there.
        """
        page = self._mapped.written_page()
        if page is None:
            return None
        name = ""
        for spec in self._file.layout.tensors:
            start, stop = max(page[0], spec.start), min(page[1], spec.stop)
            if start < stop and not spec.name.startswith(PADDING):
                before, now = bytearray(stop - start), self._mapped.in_place(start, stop)
                self._file.read(start, stop, memoryview(before))
                if bytes(now[0]) != before:
                    return spec.name
                name = name or spec.name
        return name

    def _note_versions(self) -> None:
        names = self._tensors.keys() & self._file.layout.by_name  # without aliases
        self._versions = {name: self._version(name) for name in sorted(names)}

    def _version(self, name: str) -> int:
        """Return how often torch's operators have changed a tensor in place."""
        return self._tensors[name]._version
