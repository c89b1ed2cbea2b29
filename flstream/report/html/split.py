"""The part of a run's page about how the data is split over the sites."""

from __future__ import annotations

from collections.abc import Mapping

from flstream.report.charts.drawing import Drawing, drawing
from flstream.report.charts.split import split_chart
from flstream.report.text import counted, elide
from flstream.text import natural_key, printable

_MOST_SITES, _MOST_LABELS = 40, 60
_NAME_WIDTH = 16

Split = Mapping[str, Mapping[str, int]]


def split_drawing(split: Split) -> Drawing | None:
    """Draw the split; None where no site has recorded a single example."""
    labels = _labels(split)[:_MOST_LABELS]
    sites = list(split)[:_MOST_SITES]
    counts = [[split[site].get(label, 0) for label in labels] for site in sites]
    if not any(map(sum, counts)):
        return None
    names = [elide(printable(site), _NAME_WIDTH) for site in sites]
    shown = [elide(printable(label), _NAME_WIDTH) for label in labels]
    totals = [sum(split[site].values()) for site in sites]
    return drawing(
        "Examples of each label at each site",
        lambda width: split_chart(names, shown, counts, totals, width),
    )


def split_note(split: Split) -> str:
    """Return the remark below the drawing."""
    notes = ["Examples of each label at each site, by area; beside them, all of a site."]
    labels = _labels(split)
    if len(split) > _MOST_SITES or len(labels) > _MOST_LABELS:
        sites = f"{min(len(split), _MOST_SITES)} of {counted(len(split), 'site')}"
        of_labels = f"{min(len(labels), _MOST_LABELS)} of {counted(len(labels), 'label')}"
        notes.append(f"Shown are {sites}, and {of_labels}.")
    return " ".join(notes)


def _labels(split: Split) -> list[str]:
    return sorted({label for counts in split.values() for label in counts}, key=natural_key)
