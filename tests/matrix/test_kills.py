"""A run that is killed at any point, whoever is killed, resumes to the bits of the table.

The cases cover each pair of kind of row, point, victim, time and engine of the resume; those of a
kind go through its rows in turn. A tenth of them, drawn by the hash of flstream/, runs each time;
`make test-nightly` runs all of them.
"""

import random
import re

import pytest
from kill_points import WORKERS, run_killed
from matrix_draw import drawn
from matrix_pairs import lacking, pairwise
from matrix_rows import ROWS, VICTIMS
from matrix_runs import overrides_of, recorded, run
from nightly_cases import first_and_nightly

from flstream.job.aggregation_section import METHODS
from flstream.telemetry.halts import POINTS

ENGINES = ("inline", "local")
"""Where the run resumes, having been killed in processes of its own."""
HALF = "half"
"""The point at which the rows' training code halts in the midst of a training."""
TIMES = {"first": dict.fromkeys(POINTS, 1)}
TIMES["later"] = {"training": 6, "record": 2, "rename": 3, "fold": 2, "evaluation": 6}
OURS = re.compile(
    r"(best|global)\.safetensors|(events|memory)\.jsonl|job\.conf|(job\.files|summary|versions)\.json"
    r"|report\.html|[\w-]+\.log|checkpoints/round-\d{4}(\.\w[\w-]*)*\.safetensors"
    r"|cross_site/(cross_val_results\.json|models/[\w-]+\.safetensors)"
    r"|updates/effect-\d{4}/site-\d\.safetensors"
    r"|sites/(site-\d|evaluator)/(log\.txt|work/model\.safetensors|last\.safetensors|state/effect-\d{4}\.\w{32}/.+)"
)
"""Names of the files that a finished run has, as documented."""


COMPARED = [name for name, method in METHODS.items() if method.compares]
FOLDED_AT_ONCE = [
    name for name, method in METHODS.items() if not (method.compares or method.is_weighted)
]
ALIKE = (
    ("fedavg", "fedprox", "diff", "numpy", "weights", "excluded"),
    ("local optimizer", "offloaded", "outer steps"),
    ("clipped", "norm_bounded_mean"),
    (*FOLDED_AT_ONCE, "own aggregator"),
    tuple(COMPARED),
    ("fedavgm", "nesterov", "fedadagrad", "fedadam", "fedyogi"),
    ("private", "private adaptive"),
    ("cast up", "int8 up", "int4 up", "own codec up"),
    ("topk up", "ternary up"),
    ("cast down", "int8 down", "int4 down"),
    ("delta both", "own compressor"),
    ("percentile_privacy", "svt_privacy", "exclude_vars", "own filter"),
    ("gaussian", "gaussian down", "filters"),
    ("thin links", "links that change"),
)
"""Rows whose runs leave the same records and files: a resume knows nothing of how they differ."""
SINGLE = [(row,) for row in ROWS if not any(row in kind for kind in ALIKE)]


def is_possible(case):
    kind, point, victim, time, _ = case
    row = ROWS[kind[0]]
    comes = point in row.points and point in TIMES[time] and time in row.times
    return comes and victim in row.victims


KINDS, OTHERS = [*SINGLE, *ALIKE], [list(POINTS), VICTIMS, list(TIMES), ENGINES]
PAIRS = list(pairwise(KINDS, OTHERS, is_possible))
CASES = [
    (case[0][place % len(case[0])], *case[1:])
    for kind in KINDS
    for place, case in enumerate(case for case in PAIRS if case[0] == kind)
]


def test_each_pair_and_each_row_has_a_case():
    assert lacking(PAIRS, [KINDS, *OTHERS], is_possible) == set()
    assert {row for row, *_ in CASES} == {*ROWS}
    for kind in ALIKE:
        assert len({ROWS[row][2:] for row in kind}) == 1  # its rows may be killed alike


@pytest.mark.kills
@pytest.mark.parametrize("case", drawn(CASES, 10, 1, 2, 3, 4), ids=", ".join)
def test_a_killed_run_resumes_to_the_bits_of_the_table(case, tmp_path, fork_server):
    row, point, victim, time, engine = case
    size = ROWS[row].sizes[0]
    folder, overrides = tmp_path / "run", overrides_of(row, size, WORKERS)
    assert run_killed(folder, overrides, point, TIMES[time][point], victim), "it never came there"
    resumed = run(folder, [*overrides, f"engine.type={engine}"], resume=True)
    assert resumed == recorded(f"{row}, {size}")
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert [name for name in files if not OURS.fullmatch(name)] == []


def instants(row):
    """Twenty kills of a row at points drawn by its name: half of them in the midst of a training.

    There, a model's file is half written, the base is mapped, or the moments are of one step.
    """
    chance, most = random.Random(row), {**TIMES["later"], "end": 1, HALF: 12}
    for number in range(20):
        point = HALF if number % 2 else chance.choice(list(POINTS))
        size = chance.choice(["tiny", "middle", "large"])
        yield row, size, point, chance.randint(1, most[point]), chance.choice(VICTIMS)


@pytest.mark.kills
@pytest.mark.parametrize(
    "case",
    drawn([case for row in ("files", "base", "offloaded") for case in instants(row)], 10, 0),
    ids=lambda case: ", ".join(map(str, case)),
)
def test_a_run_that_keeps_files_at_its_sites_is_killed_at_any_instant(case, tmp_path, fork_server):
    row, size, point, time, victim = case
    overrides = overrides_of(row, size, WORKERS)
    assert run_killed(tmp_path / "run", overrides, point, time, victim), "it never came there"
    assert run(tmp_path / "run", overrides, resume=True) == recorded(f"{row}, {size}")


@pytest.mark.kills
@first_and_nightly("row", ["fedavg", "median"])
def test_a_run_whose_updates_wait_in_files_resumes_to_the_bits_of_the_table(
    row, tmp_path, fork_server
):
    overrides = overrides_of(row, "large", "clients.parallel=1")
    assert run_killed(tmp_path / "run", overrides, "training", 4, "server")
    assert run(tmp_path / "run", overrides, resume=True) == recorded(f"{row}, large")


def test_a_run_that_is_killed_again_as_it_resumes_has_the_bits_of_the_table(tmp_path, fork_server):
    folder, overrides = tmp_path / "run", overrides_of("scaffold", "tiny", WORKERS)
    for resume in (False, True):
        assert run_killed(folder, overrides, "record", 2, "server", resume=resume)
    assert run(folder, overrides, resume=True) == recorded("scaffold, tiny")


@pytest.mark.kills
@first_and_nightly(
    ("row", "back"),
    [("scaffold", 1), ("fedper", 1), ("topk up", 1), ("stages", 1), ("fedavg", 0), ("buffered", 2)],
)
def test_a_finished_run_that_goes_back_to_a_round_has_the_bits_of_the_table(
    row, back, tmp_path, fork_server
):
    folder, overrides = tmp_path / "run", overrides_of(row, "tiny", "checkpoints.keep=all")
    due = recorded(f"{row}, tiny")
    assert run(folder, overrides) == due
    assert run(folder, overrides, resume=True, from_round=back) == due
