"""The base of a run's sites as a module: see the key ``model.base``."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.client.adapters import add_residuals, forget_bases
from flstream.client.seeding import kept_generators
from flstream.errors import ClientError, ModelError
from flstream.job.code import make
from flstream.job.model_section import BaseSection
from flstream.model.shared_base import Held, SharedBase, base_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

CLASS, CONFIG, GENERATION = "flstream.class", "flstream.config", "flstream.generation"
"""Metadata of a base of transformers: its class, and the JSON of its configurations."""

# The base of this process's run, and its mapping once code has asked for it.
_section: BaseSection | None = None
_mapped: tuple[Path, SharedBase] | None = None
# The file that the model received last is an adapter of, where that is no longer the run's.
_other: Path | None = None
# Modules that have the base's tensors, and where.
_held: weakref.WeakKeyDictionary[torch.nn.Module, Held] = weakref.WeakKeyDictionary()


def enter_base(section: BaseSection | None) -> None:
    """Set the base of this process's user code; None for none."""
    global _section, _other
    _section, _other = section, None
    forget_bases()


def present_base() -> BaseSection | None:
    """Return the base of this process's user code; None for none."""
    return _section


def base_model(*, scaling: float | None = None) -> torch.nn.Module:
    """Return the base of ``model.base``, whose tensors all processes of a machine share.

    Training code, the evaluator's and ``model.factory`` call it, and build their adapter around the
    module. Each call makes a new module over the same memory: its parameters are frozen, and views
    of a file that is mapped. A base of ``model.base.hf`` is in evaluation mode, as after
    ``from_pretrained``. Random generators stay as they are::

        net = get_peft_model(flare.base_model(), LoraConfig(r=8))

    Under a workflow with a residual beside the adapter (``fedex``, ``flora``), its linear layers
    add that of the model received last, times the adapter's scaling.

    Writing to the base is an error at the task's end that names the parameter. ``.to(dtype)`` makes
    copies of this process's own; name ``model.base.dtype`` instead.

    Args:
        scaling: Scaling of the adapter, ``lora_alpha / r``, by which a residual is multiplied; None
            for that of PEFT's layers.

    Returns:
        The module. In ``flstream validate``, for which no base is built, it is on torch's meta
        device.

    Raises:
        ClientError: The process is none of a run, or the job has no ``model.base``.
        ModelError: The base cannot be built on the meta device.
        CheckpointError: The base's file is gone.
    """
    if _section is None:
        raise ClientError(
            "base_model() has no base to return: set model.base in the job file, and call it in "
            "code that flstream simulate runs for a site, the evaluator or model.factory"
        )
    if not _section.digest:
        return meta_module(_section, described(_section))
    base = _shared_base(_section)
    module = meta_module(_section, base.metadata)
    _held[module] = base.fill(module)
    add_residuals(module, scaling)
    return module


def check_base() -> None:
    """Refuse a base that this process's code has written to.

    Raises:
        ClientError: A tensor was written to; the message names it.
    """
    if _mapped is not None and _section is not None and _path(_section) == _mapped[0]:
        _mapped[1].check()


def restore_base() -> None:
    """Undo what this process's code has written to the base."""
    if _mapped is not None:
        _mapped[1].restore()


def follow_base(path: str) -> None:
    """Give this process's modules the base of a received model, where it is another one.

    Args:
        path: Path of its file; empty for the run's base.
    """
    global _other
    other = Path(path) if path else None
    if other == _other or _section is None:
        return
    _other = other
    for held in _held.values():
        _shared_base(_section).refill(held)


def _path(section: BaseSection) -> Path:
    return _other or base_file(section.digest)


def _shared_base(section: BaseSection) -> SharedBase:
    global _mapped
    if _mapped is None or _mapped[0] != _path(section):
        import torch

        with torch.inference_mode(False):  # in which tensors have no version
            _mapped = _path(section), SharedBase(_path(section))
    return _mapped[1]


def meta_module(section: BaseSection, metadata: Mapping[str, str]) -> torch.nn.Module:
    """Build a base on torch's meta device, where its tensors have no bytes.

    Args:
        section: The section of the job file.
        metadata: Description of a base of transformers: see :func:`described`.

    Raises:
        ModelError: It cannot be built there; the message has the reason.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    # Whoever records the operations of a model's factory is to see none of the base's.
    with kept_generators(), torch.inference_mode(False), _disable_current_modes():
        try:
            with torch.device("meta"):
                if section.hf is None:
                    return made_module(section)
                return _hf_module(section, metadata)
        except ModelError:
            raise
        except Exception as error:
            origin = section.hf or section.factory
            raise ModelError(
                f"model.base: {origin} cannot be built on torch's meta device, where tensors have "
                f"no values: {type(error).__name__}: {error}; make it a module whose constructor "
                "reads no values, or save it for model.base.hf"
            ) from error


def made_module(section: BaseSection) -> torch.nn.Module:
    """Call a base's factory, and return its module."""
    import torch

    assert section.factory is not None
    result = make(section.factory, section.args)
    module = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(module, torch.nn.Module):
        raise ModelError(
            f"model.base.factory {section.factory} returned a {type(module).__name__}; it must "
            "return a torch module, or a tuple that begins with one"
        )
    return module


def _hf_module(section: BaseSection, metadata: Mapping[str, str]) -> torch.nn.Module:
    import transformers

    config_class = hf_class(metadata[CLASS]).config_class
    config = config_class.from_dict(json.loads(metadata[CONFIG]))
    config._name_or_path = hf_folder(section)
    module: torch.nn.Module = hf_class(metadata[CLASS])(config)
    if GENERATION in metadata:
        values = json.loads(metadata[GENERATION])
        module.generation_config = transformers.GenerationConfig.from_dict(values)
    return module.eval()


def described(section: BaseSection, module: Any = None) -> dict[str, str]:
    """Return the metadata of a base, from which :func:`meta_module` builds it anywhere.

    Args:
        section: The section of the job file.
        module: The base with its weights; None to read the configuration of ``model.base.hf``.

    Raises:
        ModelError: There is no such model; the message says where it was looked for.
    """
    if section.hf is None:
        return {"format": "pt"}
    if module is not None:
        config, name = module.config, type(module).__name__
    else:
        import transformers

        folder = hf_folder(section)
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ModelError(f"model.base.hf: {error}") from error
        name = (config.architectures or ["none"])[0]
        config.dtype = section.dtype or config.dtype
    values = json.loads(config.to_json_string())
    values.pop("transformers_version", None)
    metadata = {"format": "pt", CLASS: name, CONFIG: json.dumps(values, sort_keys=True)}
    generation = getattr(module, "generation_config", None)
    if generation is not None:
        values = json.loads(generation.to_json_string())
        values.pop("transformers_version", None)
        metadata[GENERATION] = json.dumps(values, sort_keys=True)
    return metadata


def hf_class(name: str) -> Any:
    """Return the class of transformers for an architecture."""
    import transformers

    architecture = getattr(transformers, name, None)
    if architecture is None:
        raise ModelError(
            f"model.base.hf: transformers {transformers.__version__} has no architecture {name!r}, "
            "which config.json names; load it by a factory, model.base.factory"
        )
    return architecture


def hf_folder(section: BaseSection) -> str:
    """Return the folder of a base of transformers; a name's is in the local cache.

    Raises:
        ModelError: The cache does not have it.
    """
    assert section.hf is not None
    if Path(section.hf).is_absolute():
        return section.hf
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return str(snapshot_download(section.hf, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model.base.hf: {section.hf} is no folder, and not in the Hugging Face cache; nothing "
            f"is downloaded here, so fetch it first: hf download {section.hf}"
        ) from error
