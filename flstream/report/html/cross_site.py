"""The part of a run's page about what each site has found of each model."""

from __future__ import annotations

from flstream.report.charts.drawing import Drawing, drawing
from flstream.report.charts.heat import heat_chart
from flstream.report.record.json_files import Matrix
from flstream.report.text import counted, elide, format_metric
from flstream.text import printable

_MOST_SITES = 40
_NAME_WIDTH = 18
# The names that NVFlare's readers look for say little to people.
_TITLES = {"SRV_FL_global_model.pt": "final model", "SRV_best_FL_global_model.pt": "best model"}


def cross_site_drawing(matrix: Matrix, key_metric: str) -> Drawing | None:
    """Draw the scores of one metric; None where there are none.

    Args:
        matrix: What each site has found.
        key_metric: Metric to draw; where nobody has it, the first one.
    """
    owners = owners_of(matrix)[: _MOST_SITES + len(_TITLES)]
    name = metric_of(matrix, key_metric)
    if name is None:
        return None
    sites = list(matrix)[:_MOST_SITES]
    values = [[matrix[site].get(owner, {}).get(name) for owner in owners] for site in sites]
    texts = [["" if each is None else format_metric(each) for each in row] for row in values]
    shown = [elide(_TITLES.get(owner, printable(owner)), _NAME_WIDTH) for owner in owners]
    names = [elide(printable(site), _NAME_WIDTH) for site in sites]
    return drawing(
        f"{printable(name)} of each model at each site",
        lambda width: heat_chart(names, shown, values, texts, width),
    )


def cross_site_note(matrix: Matrix, key_metric: str) -> str:
    """Return the remark below the drawing."""
    name, owners = metric_of(matrix, key_metric), owners_of(matrix)
    if name is None:
        return ""
    notes = [f"{printable(name)} of each model (below) on the data of each site (left)."]
    missing = sum(owner not in row for row in matrix.values() for owner in owners)
    if missing:
        notes.append(f"{counted(missing, 'score')} missing: those sites failed or were late.")
    if len(matrix) > _MOST_SITES:
        notes.append(f"Shown are {_MOST_SITES} of {counted(len(matrix), 'site')}.")
    notes.append("All metrics are in cross_site/cross_val_results.json.")
    return " ".join(notes)


def owners_of(matrix: Matrix) -> list[str]:
    """Return the owners of all models, in the order in which sites have scored them."""
    return list(dict.fromkeys(owner for row in matrix.values() for owner in row))


def metric_of(matrix: Matrix, key_metric: str) -> str | None:
    """Return the metric to draw; None where there is none."""
    entries = [entry for row in matrix.values() for entry in row.values()]
    names = dict.fromkeys(name for entry in entries for name in entry)
    return key_metric if key_metric in names else next(iter(names), None)
