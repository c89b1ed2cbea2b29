import json
import os
import subprocess
import sys

import against
from against import Comparison
from rows import MIB, Row, cost


def test_a_figure_costs_more_the_worse_it_is_and_little_memory_as_much_as_none():
    units = {"ms": 0.351, "GB/s": 2.0, "tasks/s": 2000, "MiB/round": 0.125}
    assert [cost(value, unit) for unit, value in units.items()] == [0.351, 0.5, 0.0005, 0.125]
    assert cost(0, "bytes") == cost(4 * MIB, "bytes") < cost(5 * MIB, "bytes")
    assert cost(-0.3, "MiB/round") == cost(0.01, "MiB/round")


def test_a_row_misses_its_bound_and_is_worse_where_the_median_of_its_ratios_is():
    row = Row("a round", 3.0, "s", 2.0, "bare pipe", most=1.25)
    assert row.cells == ("a round", "3 s", "2 s bare pipe", "1.50", "<= 1.25", "missed")
    assert row._replace(most=1.5).is_met
    for here, verdict in (([1.10, 1.00, 1.20], "worse"), ([9.00, 1.00, 1.05], "")):
        assert Comparison("a row", "s", here, [1.0] * 3, 1.05).verdict == verdict
    assert Comparison("a row", "ms", [2.0], [1.0], 1.05).verdict == "milliseconds"


# Two checkouts whose package and scripts are their own.
SCRIPT = """
import argparse, json
import flstream

parser = argparse.ArgumentParser()
for name in ("--only", "--scale", "--json"):
    parser.add_argument(name)
options = parser.parse_args()
assert options.only == "growth"
rows = [("speed", flstream.SECONDS / int(options.scale)), (f"only of {flstream.SECONDS}", 1.0)]
with open(options.json, "w") as file:
    json.dump([{"what": what, "unit": "s", "value": value} for what, value in rows], file)
"""


def run_against(here, there, *more):
    code = "import sys, against, pathlib; against.HERE = pathlib.Path(sys.argv.pop(1)); "
    code += "sys.exit(against.main(against.parse()))"
    line = [sys.executable, "-c", code, str(here), str(there), "--pairs", "2", *more]
    path = os.pathsep.join([os.path.dirname(against.__file__), os.getcwd()])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(line, env=env, capture_output=True, text=True, cwd=there.parent)


def test_checkouts_are_compared_by_their_own_scripts(tmp_path):
    for name, seconds in (("here", 3.0), ("there", 2.0)):
        for folder, file, text in (
            ("benchmarks", "rounds.py", SCRIPT),
            ("flstream", "__init__.py", f"SECONDS = {seconds}"),
        ):
            path = tmp_path / name / folder / file
            path.parent.mkdir(parents=True)
            path.write_text(text)
    here, there = tmp_path / "here", tmp_path / "there"
    part = "--rows", "rounds.growth"
    done = run_against(here, there, *part, "--scale", "2", "--json", "rows.json")
    assert done.returncode == 1, done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["what"], row["here"], row["there"]) == ("speed", [1.5] * 2, [1.0] * 2)
    assert row["ratios"] == [1.5, 1.5]
    assert "as only the other checkout has it: only of 2.0" in done.stdout
    assert run_against(here, there, *part, "--bound", "1.6").returncode == 0
    assert "no part sped; there are" in run_against(here, there, "--rows", "sped").stderr
