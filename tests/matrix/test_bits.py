"""Every way of computing a model has the bits of the table, however its bytes move.

The cases cover each pair of row, workers, chunk size, streaming mode and model size that there is.
A change that is to change bits writes the table anew (`make digests`), for a reviewer to read.
"""

import json
import re
from typing import get_args

import pytest
from matrix_pairs import pairs_of, pairwise
from matrix_rows import MODES, ROWS, SHIPPED
from matrix_runs import DIGESTS, JOBS, overrides_of, recorded, run

from flstream.codecs.chain import BLOCK_CODECS, COMPRESSORS, STEPS
from flstream.job.aggregation_method import METHODS
from flstream.job.filter_sections import BUILT_IN as FILTERS
from flstream.job.sections import ServerOptimizerSection
from flstream.workflows.registry import BUILT_IN

WORKERS = ("one", "two", "one a site")
CHUNKS = ("48 B", "4 KiB", "2 MiB", "0")
SIZES = ("tiny", "large")


def is_possible(case):
    row, _, chunk, mode, size = case
    # Frames of 48 B are for a model of some hundred bytes.
    fits = (chunk, size) != ("48 B", "large")
    return fits and mode in ROWS[row].modes and size in ROWS[row].sizes


CASES = list(pairwise(list(ROWS), [WORKERS, CHUNKS, MODES, SIZES], is_possible))


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_a_model_has_the_bits_of_the_table(case, tmp_path, fork_server):
    row, workers, chunk, mode, size = case
    how = [f"streaming.mode={mode}", f"streaming.tensor_download_chunk_size={chunk}"]
    how += {"one": ["clients.parallel=1"], "two": ["clients.parallel=2"]}.get(workers, [])
    assert run(tmp_path / "run", overrides_of(row, size, *how)) == recorded(f"{row}, {size}")


@pytest.mark.parametrize("job", SHIPPED)
def test_a_shipped_job_has_the_bits_of_the_table(job, tmp_path, fork_server):
    path = JOBS / job / "job.conf"
    assert run(tmp_path / "run", list(SHIPPED[job]), path) == recorded(f"jobs/{job}")


def test_rows_end_in_bits_of_their_own():
    """What a row is about makes a difference, but where it must make none."""
    table = json.loads(DIGESTS.read_text())
    alike = {"swarm", "cross_site", "stopped", "delta both", "own compressor", "thin links"}
    alike |= {"diff", "local optimizer"}
    models = [table[f"{row}, {ROWS[row].sizes[-1]}"]["model"] for row in ROWS if row not in alike]
    assert len(set(models)) == len(models)


def test_whatever_a_job_can_name_has_a_row():
    text = " ".join([*ROWS, *(setting for row in ROWS.values() for setting in row.settings)])
    words = set(re.findall(r"\w+", text))
    named = {*BUILT_IN, *METHODS, *BLOCK_CODECS, *STEPS, *COMPRESSORS, *FILTERS}
    named |= set(get_args(ServerOptimizerSection.model_fields["type"].annotation)) - {"none"}
    assert named - words - {"mean"} == set()


def test_each_pair_has_a_case():
    possible = {
        pair
        for row in ROWS
        for workers in WORKERS
        for chunk in CHUNKS
        for mode in MODES
        for size in SIZES
        if is_possible(case := (row, workers, chunk, mode, size))
        for pair in pairs_of(case)
    }
    assert possible == {pair for case in CASES for pair in pairs_of(case)}
