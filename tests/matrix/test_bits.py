"""Every way of computing a model has the bits of the table, however its bytes move.

The cases cover each pair of row, workers, chunk size, streaming mode and model size that there is.
Those in one process run each time, and a twelfth of the others, drawn by the hash of flstream/;
`make test-nightly` runs all of them.
A change that is to change bits writes the table anew (`make digests`), for a reviewer to read.
"""

import json
import re
from collections import defaultdict
from typing import get_args

import pytest
from matrix_draw import drawn
from matrix_pairs import lacking, pairwise
from matrix_rows import BY_PROCESSOR, MODES, ROWS, SHIPPED
from matrix_runs import DIGESTS, overrides_of, path_of, recorded, run
from nightly_cases import first_and_nightly

from flstream.codecs.chain import BLOCK_CODECS, COMPRESSORS, STEPS
from flstream.job.aggregation_section import METHODS, ServerOptimizerSection
from flstream.job.filters import BUILT_IN as FILTERS
from flstream.workflows.registry import BUILT_IN

WORKERS = {
    "inline": ["engine.type=inline"],
    "one": ["clients.parallel=1"],
    "two": ["clients.parallel=2"],
    "one a site": [],
}
CHUNKS = ("48 B", "4 KiB", "2 MiB", "0")
SIZES = ("tiny", "middle", "large")


def is_possible(case):
    row, _, chunk, mode, size = case
    modes, sizes = ROWS[row].modes, ROWS[row].sizes
    # A model that is larger than a chunk need not be much larger: thousands of frames take seconds.
    larger = "middle" if chunk in ("48 B", "4 KiB") else "large"
    return size in ("tiny", larger) and size in sizes and mode in modes


ALIKE = [
    {"fedavg", "swarm", "cross_site", "local optimizer", "offloaded", "stopped", "thin links"}
    | {"delta both", "own compressor", "numpy", "links that change", "evaluator"},
    {"fedper", "exclude_vars"},  # the base of this model does not depend on its head
    {"median", "own aggregator"},
]
"""Rows that come to the same model."""
OTHERS = [list(WORKERS), CHUNKS, MODES, SIZES]
CASES = list(pairwise(list(ROWS), OTHERS, is_possible))

DAILY = [case for case in CASES if case[1] == "inline"]
"""The cheapest, of which there is one or more of nearly every row."""


@pytest.mark.parametrize(
    "case",
    [*DAILY, *drawn([case for case in CASES if case not in DAILY], 12, 1, 3, 2)],
    ids=", ".join,
)
def test_a_model_has_the_bits_of_the_table(case, tmp_path, fork_server):
    row, workers, chunk, mode, size = case
    how = [f"streaming.mode={mode}", f"streaming.tensor_download_chunk_size={chunk}"]
    how += WORKERS[workers]
    assert run(tmp_path / "run", overrides_of(row, size, *how)) == recorded(f"{row}, {size}")


@first_and_nightly("job", list(SHIPPED), brief=2)
def test_a_shipped_job_has_the_bits_of_the_table(job, tmp_path, fork_server):
    assert run(tmp_path / "run", list(SHIPPED[job]), path_of(job)) == recorded(f"jobs/{job}")


@first_and_nightly("job", list(BY_PROCESSOR), brief=3)
def test_a_shipped_job_has_the_same_bits_however_its_bytes_move(job, tmp_path, fork_server):
    how = list(BY_PROCESSOR[job])
    other = [*how, "clients.parallel=2", "streaming.tensor_download_chunk_size=4 KiB"]
    inline = run(tmp_path / "inline", [*how, "engine.type=inline"], path_of(job))
    assert run(tmp_path / "other", other, path_of(job)) == inline
    assert inline["accuracy"][-1] > 0.6


def test_what_a_row_is_about_makes_a_difference_but_where_it_must_make_none():
    table = json.loads(DIGESTS.read_text())
    rows = defaultdict(set)
    for row in ROWS:
        rows[table[f"{row}, {ROWS[row].sizes[-1]}"]["model"]].add(row)
    assert [alike for alike in rows.values() if len(alike) > 1] == ALIKE


OPTIMIZERS = get_args(ServerOptimizerSection.model_fields["type"].annotation)


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("workflow=", BUILT_IN),
        ("aggregation.method=", METHODS),
        ("server_optimizer=", OPTIMIZERS),
        ("streaming.codecs", [*BLOCK_CODECS, *STEPS, *COMPRESSORS]),
        ("filters.", FILTERS),
    ],
)
def test_whatever_a_job_can_name_has_a_row(section, names):
    settings = [each for row in ROWS.values() for each in row.settings if each.startswith(section)]
    # Types, and names in lists and in quotes: neither keys nor the values of other keys.
    named = re.findall(r"(?:(?<=type=)|(?<![\w=]))\w+\b(?!=)", " ".join(settings))
    assert set(names) - {*named, "mean", "none"} == set()


def test_each_pair_has_a_case():
    assert lacking(CASES, [ROWS, *OTHERS], is_possible) == set()
