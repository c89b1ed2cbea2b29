"""The order in which sites take their turns, as a job file gives it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flstream.job.problems import did_you_mean
from flstream.job.rules import ValueRule
from flstream.workflows.site_list import list_flaw

ORDERS = ("fixed", "random", "random_without_same_in_a_row")


@dataclass(frozen=True)
class SiteOrder(ValueRule):
    """The name of an order, or a list of sites' names."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return f"one of {', '.join(ORDERS)}, or a list of sites, each of them once"

    def parse(self, value: Any, folder: Path) -> str | list[str]:
        """Return the order. Whether the job has these sites is not known here."""
        if isinstance(value, list):
            if flaw := list_flaw(value, "[site-2, site-1]"):
                raise self.refused(value, flaw)
            return value
        if value not in ORDERS:
            raise self.refused(value, did_you_mean(str(value).lower(), ORDERS))
        return str(value)
