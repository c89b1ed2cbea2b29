"""The split of the data over the sites is recorded by them and drawn in the run's page."""

import json

from drawn import texts
from nightly_cases import first_and_nightly

from flstream.report.html.run_page import run_page
from flstream.report.html.split import split_drawing, split_note
from flstream.report.record.json_files import read_split
from flstream.report.record.run import read_run

SPLITS = """
import numpy as np
import flstream.client as flare
from flstream.client import partition

labels = np.arange(40) % 3
parts = partition.dirichlet(labels, 2, alpha=1.0, seed=3)
flare.init()
while flare.is_running():
    mine = parts[flare.system_info()["site_index"]]
    partition.record(labels[mine])
    model = flare.receive()
    for tensor in model.params.values():
        tensor += 1
    flare.send(flare.FLModel(params=model.params))
"""


@first_and_nightly("parallel", [1, 2])
def test_what_sites_record_is_drawn_in_the_page(jobs, parallel):
    run = jobs.run(SPLITS, f"clients.parallel={parallel}", "workflow.args.evaluate_every=0")
    assert run.summary.status == "finished", run.summary.error
    split = read_split(run.directory.sites)
    assert list(split) == ["site-1", "site-2"]
    totals = [split["site-1"].get(label, 0) + split["site-2"].get(label, 0) for label in "012"]
    assert totals == [14, 13, 13]
    page = run_page(read_run(run.directory.path))
    assert "Examples of each label at each site" in page
    for site in split.values():
        assert str(sum(site.values())) in texts(page)


def test_a_run_without_it_has_no_such_section(jobs, noise):
    run = jobs.run(noise)
    assert "Examples of each label" not in run_page(read_run(run.directory.path))


def write(folder, site, text):
    (folder / site).mkdir()
    (folder / site / "split.json").write_text(text)


def test_sites_are_in_their_order_and_damaged_files_passed_over(tmp_path):
    for site in ("site-10", "site-9"):
        write(tmp_path, site, json.dumps({"a": 1}))
    for number, text in enumerate(("{", "[1]", '{"a": -1}', '{"a": 1.5}', '{"a": "many"}')):
        write(tmp_path, f"damaged-{number}", text)
    assert read_split(tmp_path) == {"site-9": {"a": 1}, "site-10": {"a": 1}}
    assert list(read_split(tmp_path)) == ["site-9", "site-10"]


def test_of_many_sites_and_labels_the_first_are_drawn():
    split = {f"s{site}": {f"l{label}": site + label for label in range(70)} for site in range(45)}
    drawing = split_drawing(split)
    assert drawing is not None
    assert "s39" in texts(drawing.narrow)
    assert f"{sum(range(70)):,}" in texts(drawing.narrow)
    assert "s40" not in texts(drawing.narrow)
    assert split_note(split).endswith("Shown are 40 of 45 sites, and 60 of 70 labels.")
    assert split_drawing({}) is None
    assert split_drawing({"s": {"a": 0}}) is None
    assert split_note({"s": {"a": 1}}).endswith("all of a site.")
