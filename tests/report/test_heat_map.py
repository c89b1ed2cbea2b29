"""The heat map of scores across sites, and what the page says of it."""

import numpy as np
import pytest
from drawn import texts

from flstream.report.charts.heat import heat_chart
from flstream.report.html.cross_site import (
    cross_site_drawing,
    cross_site_note,
    metric_of,
    owners_of,
)
from flstream.report.record.json_files import read_cross_site

FINAL = "SRV_FL_global_model.pt"
MATRIX = {
    "site-1": {FINAL: {"accuracy": 0.9, "loss": 0.3}, "site-1": {"accuracy": 0.5, "loss": 1.0}},
    "site-2": {FINAL: {"accuracy": 0.8, "loss": 0.4}},
}


def test_each_score_has_a_cell_with_its_value():
    drawing = cross_site_drawing(MATRIX, "accuracy")
    for address in (drawing.narrow, drawing.wide):
        found = texts(address)
        for text in ("0.9000", "0.8000", "0.5000", "final model", "site-1", "site-2"):
            assert text in found
        assert "0.3000" not in found


def test_the_note_names_the_metric_and_counts_what_is_missing():
    note = cross_site_note(MATRIX, "loss")
    assert note.startswith("loss of each model")
    assert "1 score missing" in note
    assert owners_of(MATRIX) == [FINAL, "site-1"]
    assert metric_of(MATRIX, "f1") == "accuracy"


def test_nothing_is_drawn_without_scores(tmp_path):
    assert read_cross_site(tmp_path / "none.json") == {}
    (tmp_path / "other.json").write_text("[1, 2]")
    assert read_cross_site(tmp_path / "other.json") == {}
    assert cross_site_drawing({}, "accuracy") is None
    assert cross_site_note({"site-1": {}}, "accuracy") == ""


@pytest.mark.parametrize("width", [350, 740])
@pytest.mark.parametrize("count", [1, 40])
def test_many_sites_and_values_that_are_missing_or_alike_are_drawn(width, count):
    sites = [f"hospital-of-number-{index}" for index in range(count)]
    values = [[None if index % 3 else 1.0 for index in range(count)] for _ in sites]
    shown = [["" if each is None else "1.0000" for each in row] for row in values]
    chart = heat_chart(sites, sites, values, shown, width)
    [axes] = chart.axes
    [image] = axes.images
    expected = [[each is not None for each in row] for row in values]
    assert np.isfinite(image.get_array().filled(np.nan)).tolist() == expected
    assert bool(axes.texts) == (count == 1)
