"""What becomes of a persistor's model: a factory with arguments, a checkpoint, or arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.recipe.nvflare.draft import Argument, ConfiguredClass, JobDraft
from flstream.recipe.nvflare.notes import Note
from flstream.recipe.nvflare_names import MODEL_KEYS, NUMPY_KEY, class_and_args

if TYPE_CHECKING:
    import numpy as np

_ARRAYS = "initial.npz"
# What NVFlare's persistor of NumPy begins with where it is given nothing.
_DEFAULT_ARRAY = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def model(draft: JobDraft, argument: Argument) -> Note:
    """Convert a model: a class with arguments, the path of a class, or the id of a component."""
    value = argument.value
    if value is None:
        return argument.not_needed("no model is given")
    if isinstance(value, str):
        for each in draft.components:
            if each.id == value:
                draft.models.add(value)
                return _factory(draft, argument, {"path": each.named, "args": each.args})
        return _factory(draft, argument, {"path": value})
    if not isinstance(value, dict) or value.keys() - MODEL_KEYS:
        return argument.lost("a model is a class with its arguments: model.factory, model.args")
    return _factory(draft, argument, value)


def _factory(draft: JobDraft, argument: Argument, given: Mapping[str, Any]) -> Note:
    found = class_and_args(given)
    if found is None:
        return argument.lost("model.factory must be a module and a class in it, such as net.Net")
    named, args = found
    refused = draft.put("model.factory", named)
    if refused is None and args:
        refused = draft.put("model.args", dict(args))
    return argument.becomes_unless(refused, "model.factory", *(["model.args"] if args else []))


def checkpoint(draft: JobDraft, argument: Argument) -> Note:
    """Convert the path of a file with the initial weights; one in the job folder is copied."""
    value = argument.value
    if value in (None, ""):
        return argument.not_needed("no file is given")
    if not isinstance(value, str) or argument.owner is None:
        return argument.lost("model.initial must be the path of a file")
    found = _find(argument.owner, value)
    if found is None:
        refused = draft.put("model.initial", value)
        return argument.becomes_unless(refused, f"model.initial, but there is no {value} here")
    if found.suffix == ".npy":
        return _array_file(draft, argument, found)
    if Path(value).is_absolute():
        refused = draft.put("model.initial", str(found))
    else:
        refused = draft.put("model.initial", found.name)
        if refused is None:
            draft.files[found.name] = found
    return argument.becomes_unless(refused, "model.initial")


def _find(owner: ConfiguredClass, value: str) -> Path | None:
    """Return the path of a checkpoint; one that is not absolute lies in the app's folder."""
    if Path(value).is_absolute():
        return Path(value) if Path(value).is_file() else None
    app = owner.app
    for folder in (app.root, app.path, app.custom):
        path = None if folder is None else (folder / value).resolve()
        if path is not None and path.is_file() and path.is_relative_to(app.root):
            return path
    return None


def _array_file(draft: JobDraft, argument: Argument, path: Path) -> Note:
    import numpy as np

    try:
        # Unlike numpy.load, it takes nothing but arrays of plain numbers.
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        return argument.lost(f"{path.name} cannot be read: {' '.join(str(error).split())}")
    return _array(draft, argument, array)


def nested_list(draft: JobDraft, argument: Argument) -> Note:
    """Convert an array that is given as nested lists."""
    import numpy as np

    if argument.value is None:
        return argument.not_needed("no model is given")
    try:
        array = np.asarray(argument.value, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        return argument.lost("it is no array of numbers")
    return _array(draft, argument, array)


def _array(draft: JobDraft, argument: Argument, array: np.ndarray) -> Note:
    refused = draft.put("model.initial", _ARRAYS)
    if refused is None:
        draft.arrays[_ARRAYS] = {NUMPY_KEY: array}
    return argument.becomes_unless(refused, "model.initial")


def numpy_model(draft: JobDraft, owner: ConfiguredClass) -> Iterable[Note]:
    """Complete the settings of a persistor of NumPy, once its arguments are converted."""
    import numpy as np

    if draft.put("train.exchange_format", "numpy") is None:
        yield owner.place.note("becomes", "train.exchange_format = numpy", owner.named)
    if "model.initial" not in draft.values and "model.factory" not in draft.values:
        draft.values["model.initial"] = _ARRAYS
        draft.arrays[_ARRAYS] = {NUMPY_KEY: np.asarray(_DEFAULT_ARRAY, np.float32)}
        word = "model.initial, the numbers 1 to 9 with which NVFlare begins where none are given"
        yield owner.place.note("becomes", word, owner.named)
