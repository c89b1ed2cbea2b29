"""The base builder: a short-lived process that writes the base of ``model.base`` to its file.

The tensors lie in files meanwhile. A base of ``model.base.hf`` is built once for the content of its
files; later runs find it by a link. What a factory reads is not known, so it is called whenever a
run starts or resumes, and the digest of what it has built tells a change.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from flstream.client.base import (
    CLASS,
    described,
    enter_base,
    hf_class,
    hf_folder,
    made_module,
    meta_module,
)
from flstream.client.seeding import seed_everything
from flstream.debugging import code_failed, sentence
from flstream.errors import (
    FlstreamError,
    ModelError,
    UsageError,
)
from flstream.job import Job
from flstream.job.model_section import BaseSection
from flstream.model.checkpoint import FileSource, open_blob
from flstream.model.digests import body_digest
from flstream.model.layout import Layout
from flstream.model.shared_base import (
    PADDING,
    SharedBase,
    base_file,
    bases_folder,
    held_tensors,
    is_sound,
    locked,
    write_base,
)
from flstream.telemetry.events import BaseReady
from flstream.worker.user_code import prepare_imports

if TYPE_CHECKING:
    import torch

# Of files of a folder that decide what from_pretrained makes of it.
_SUFFIXES = (".json", ".safetensors", ".bin")
_FORMAT = 1  # of the file, to be raised with what is kept in it


def built_here(job: Job) -> BaseReady:
    """Build a job's base in this process, unless its file is there."""
    section = job.base
    assert section is not None
    prepare_imports(job)
    enter_base(None)  # until it is built
    key = _key(section, job.seed)
    link = bases_folder() / f"hf-{key}"
    with locked(key):
        digest = os.readlink(link).removesuffix(".safetensors") if link.is_symlink() else ""
        if digest and is_sound(digest):
            return _ready(digest, FileSource(base_file(digest)).layout)
        digest, layout = _build(section, job.seed)
        if section.hf is not None:
            temporary = link.with_suffix(".tmp")
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(base_file(digest).name)
            temporary.replace(link)
        return _ready(digest, layout)


def _ready(digest: str, layout: Layout) -> BaseReady:
    with suppress(OSError):  # another user's file
        os.utime(base_file(digest))  # by which people find those that no run uses any more
    sizes = [spec.nbytes for spec in layout.tensors if not spec.name.startswith(PADDING)]
    return BaseReady(digest=digest, bytes=sum(sizes), tensors=len(sizes))


def _build(section: BaseSection, seed: int) -> tuple[str, Layout]:
    """Build a base with its weights, and write its file."""
    from flstream.model.file_memory import FileMemory, give_back_results

    give_back_results()
    seed_everything(seed)
    try:
        with FileMemory(bases_folder()):
            module = _whole(section)
    except UsageError as error:
        raise UsageError(f"model.base.factory {error}") from error
    except FlstreamError:
        raise
    except Exception as error:  # of the user's factory, or on weights that do not load
        code_failed(error)
        origin = section.factory or section.hf or ""
        reason = sentence(error, Path(origin.rpartition(":")[0]), origin)
        raise ModelError(f"model.base: {reason}") from error
    metadata = described(section, module)
    digest, layout = write_base(module, metadata)
    # What no site could build is found here.
    SharedBase(base_file(digest)).fill(meta_module(section, metadata))
    return digest, layout


def _whole(section: BaseSection) -> torch.nn.Module:
    """Return a base with its weights, in the dtype that the job asks for."""
    import torch

    dtype = None if section.dtype is None else getattr(torch, section.dtype)
    if section.hf is not None:
        name = described(section)[CLASS]
        module, info = hf_class(name).from_pretrained(
            hf_folder(section),
            dtype=dtype or "auto",
            local_files_only=True,
            output_loading_info=True,
        )
        if missing := sorted(info["missing_keys"]):
            raise ModelError(
                f"model.base.hf: {section.hf} has no weights for {missing[0]} of {name}; take a "
                "folder that is whole, or load it by a factory, model.base.factory"
            )
        assert isinstance(module, torch.nn.Module)
        return module
    module = made_module(section)
    _cast(module, dtype)
    return module


def _cast(module: torch.nn.Module, dtype: torch.dtype | None) -> None:
    """Cast a module to a dtype; None leaves it as it is."""
    if dtype is None:
        return
    # Buffers that no state dict has, such as frequencies, need their precision.
    buffers = [
        (part, name, part._buffers[name])
        for part in module.modules()
        for name in part._non_persistent_buffers_set
    ]
    module.to(dtype)
    for part, name, buffer in buffers:
        part._buffers[name] = buffer


def base_bytes(section: BaseSection | None) -> int:
    """Return the bytes of a base, which is not built; 0 without one.

    Raises:
        ModelError: It cannot be built.
    """
    import torch

    if section is None:
        return 0
    module: Any = meta_module(section, described(section))
    own = None if section.hf is None else module.config.dtype
    _cast(module, own if section.dtype is None else getattr(torch, section.dtype))
    storages = {
        tensor.untyped_storage()._cdata: tensor.nbytes for _, tensor, _ in held_tensors(module)
    }
    return sum(storages.values())


def _key(section: BaseSection, seed: int) -> str:
    """Return a key of what a base is built from, as far as that is known."""
    facts: tuple[object, ...] = _FORMAT, section, seed
    if section.hf is not None:
        import transformers

        # Where the files lie does not count, and no draw decides a value.
        facts = _FORMAT, section.dtype, transformers.__version__
    key = xxhash.xxh3_128(repr(facts).encode())
    if section.hf is not None:
        folder = Path(hf_folder(section))
        for path in sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES):
            key.update(f"{path.name} {body_digest(open_blob(path))}".encode())
    return key.hexdigest()
