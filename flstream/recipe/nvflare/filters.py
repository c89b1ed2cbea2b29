"""NVFlare's filters of what travels: what each becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flstream.job.filter_sections import EXCLUDE_VARS, PERCENTILE, SVT
from flstream.recipe.nvflare.arguments import unneeded
from flstream.recipe.nvflare.draft import Argument, ConfiguredClass, JobDraft
from flstream.recipe.nvflare.known_classes import KnownClass, later, no_counterpart, not_needed
from flstream.recipe.nvflare.notes import Note

TYPES = {"PercentilePrivacy": PERCENTILE, "SVTPrivacy": SVT, "ExcludeVars": EXCLUDE_VARS}
"""Names that filters have in a job file, by the names of their classes."""

_TRAINING = {"train", "*"}


def filter_of(made: ConfiguredClass) -> dict[str, Any]:
    """Return the section of a job file's filter that an object of a known class becomes."""
    args = {name: value for name, value in made.args.items() if name not in _UNNEEDED}
    return {"type": TYPES[made.short_name or ""], **args}


def is_for_trainings(tasks: object) -> bool:
    """Whether filters for these tasks are for trainings, too."""
    listed = [tasks] if isinstance(tasks, str) else tasks
    return not isinstance(listed, list) or bool(_TRAINING & set(map(str, listed)))


def _in_the_filter(draft: JobDraft, argument: Argument) -> Note:
    return argument.becomes("a key of the filter")


_UNNEEDED = {
    "data_kinds": unneeded("weights and differences are filtered alike, by their changes"),
    "replace": unneeded("as many numbers as fraction says are shared, none twice"),
}


def _becomes(*names: str) -> KnownClass:
    return KnownClass("becomes", "", {**dict.fromkeys(names, _in_the_filter), **_UNNEEDED})


FILTERS: Mapping[str, KnownClass] = {
    "PercentilePrivacy": _becomes("percentile", "gamma"),
    "SVTPrivacy": _becomes("fraction", "epsilon", "noise_var", "gamma", "tau"),
    "ExcludeVars": _becomes("exclude_vars"),
    **later(
        "this version has no codecs for what travels",
        "ModelQuantizer",
        "ModelDequantizer",
    ),
    **not_needed(
        "tensors travel in their own dtype",
        "NumpyToPTParamsConverter",
        "PTToNumpyParamsConverter",
        "ParamsConverterFilter",
    ),
    **no_counterpart(
        "nothing is encrypted between processes of one machine",
        "HEModelEncryptor",
        "HEModelDecryptor",
        "HEModelSerializeFilter",
    ),
}
"""Filters by the name of their class."""
