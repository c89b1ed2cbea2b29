"""NVFlare's filters of what travels: what each becomes."""

from __future__ import annotations

from collections.abc import Mapping

from flstream.recipe.nvflare.arguments import exclude_names
from flstream.recipe.nvflare.known_classes import KnownClass, later, no_counterpart, not_needed

FILTERS: Mapping[str, KnownClass] = {
    "ExcludeVars": KnownClass(
        "becomes", "a part of aggregation.exclude", {"exclude_vars": exclude_names}
    ),
    **later(
        "this version has no filters for privacy",
        "PercentilePrivacy",
        "SVTPrivacy",
    ),
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
