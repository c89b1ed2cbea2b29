import json
import os
import subprocess
import sys

import against
import pytest
from figures import MIB, Comparison, cost


@pytest.mark.parametrize(
    ("figure", "due", "kind"),
    [
        ("0.351 ms", 0.000351, "seconds"),
        ("2.00 GB/s", 0.5, "rate"),
        ("2,000 tasks/s", 0.0005, "rate"),
        ("1.5 GiB", 1536 * MIB, "bytes"),
        ("+0.1250 MiB/round", 0.125, "growth"),
    ],
)
def test_a_figure_costs_more_the_worse_it_is(figure, due, kind):
    assert cost(figure) == (pytest.approx(due), kind)


def test_what_is_little_is_as_good_as_none_and_what_has_no_unit_is_named():
    assert cost("0 B") == cost("4 MiB")
    assert cost("-0.3000 MiB/round") == cost("+0.0100 MiB/round")
    with pytest.raises(ValueError, match="'3 furlongs' has no number"):
        cost("3 furlongs")


@pytest.mark.parametrize(
    ("here", "verdict"),
    [(["1.10 s", "1.00 s", "1.20 s"], "worse"), (["9.00 s", "1.00 s", "1.05 s"], "")],
)
def test_a_row_is_worse_where_the_median_of_its_ratios_is(here, verdict):
    row = Comparison("a row", here, ["1.00 s"] * 3, 1.05)
    assert (row.is_worse, row.cells[-1]) == (bool(verdict), verdict)
    assert Comparison("a row", ["2 ms"], ["1 ms"], 1.05).cells[-1] == "milliseconds"


# Two checkouts whose package and scripts are their own: all that they share is one_part.py.
SCRIPT = """
from typing import NamedTuple
import flstream

class Row(NamedTuple):
    what: str
    figure: str

def speed(folder, scale):
    yield Row("speed", f"{flstream.SECONDS / scale} s")
    yield Row(f"only of {flstream.SECONDS}", "1 s")

PARTS = [speed]
"""


@pytest.fixture
def checkouts(tmp_path):
    for name, seconds in (("here", 3.0), ("there", 2.0)):
        for script in ("rounds", "transfer"):
            path = tmp_path / name / "benchmarks" / f"{script}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SCRIPT if script == "rounds" else "PARTS = []")
        package = tmp_path / name / "flstream"
        package.mkdir()
        (package / "__init__.py").write_text(f"SECONDS = {seconds}")
    return tmp_path / "here", tmp_path / "there"


def run_against(here, there, *more):
    code = "import sys, against, pathlib; against.HERE = pathlib.Path(sys.argv.pop(1)); "
    code += "sys.exit(against.main(against.parser().parse_args()))"
    line = [sys.executable, "-c", code, str(here), str(there), "--pairs", "2", *more]
    env = {**os.environ, "PYTHONPATH": os.path.dirname(against.__file__)}
    return subprocess.run(line, env=env, capture_output=True, text=True, cwd=there.parent)


def test_checkouts_are_compared_by_their_own_scripts(checkouts, tmp_path):
    here, there = checkouts
    done = run_against(here, there, "--scale", "2", "--json", "rows.json")
    assert done.returncode == 1, done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["what"], row["here"], row["there"]) == ("speed", ["1.5 s"] * 2, ["1.0 s"] * 2)
    assert row["ratios"] == [1.5, 1.5]
    assert "as only the other checkout has it: only of 2.0" in done.stdout
    assert run_against(here, there, "--bound", "1.6").returncode == 0
    assert "no part sped; there are speed" in run_against(here, there, "--rows", "sped").stderr
