"""Scores of a model by site: a column for each metric, in the order of the sites."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Columns = Mapping[str, Sequence[float | None]]
"""By metric, the values in the order of the sites; None or NaN for a site without one."""


class SiteColumns(NamedTuple):
    """Columns of the scores of some of a run's sites, packed: 8 bytes a value.

    Attributes:
        numbers: Numbers of these sites, from 0, in the fixed order of all.
        columns: By metric, their values, in this order.
    """

    numbers: Sequence[int]
    columns: Mapping[str, Sequence[float]]

    @classmethod
    def of(cls, numbers: Sequence[int] | None, columns: Columns) -> SiteColumns:
        """Pack columns of the sites of some numbers; None for all."""
        values = {
            name: array("d", (math.nan if value is None else value for value in column))
            for name, column in columns.items()
        }
        if numbers is None:
            return cls(range(max(map(len, values.values()), default=0)), values)
        return cls(tuple(numbers), values)


def columns_of(
    sites: Sequence[str], metrics: Mapping[str, Mapping[str, float]]
) -> dict[str, list[float | None]]:
    """Return columns of sites' scores, so that sites' names are written once.

    Args:
        sites: Sites of the columns, in this order.
        metrics: Metrics of each site that has any.
    """
    names = sorted({name for columns in metrics.values() for name in columns})
    rows = [metrics.get(site, {}) for site in sites]
    return {name: [row.get(name) for row in rows] for name in names}


def by_site(sites: Sequence[str], columns: Columns) -> dict[str, dict[str, float]]:
    """Return the metrics of each site that has any, by its name."""
    rows: dict[str, dict[str, float]] = {site: {} for site in sites}
    for name, values in columns.items():
        for site, value in zip(sites, values, strict=True):
            if value is not None and math.isfinite(value):
                rows[site][name] = value
    return {site: metrics for site, metrics in rows.items() if metrics}
