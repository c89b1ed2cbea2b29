"""Trainings that are started: a killed run keeps to the order of the answers that it had taken.

What it ends in is what a run ends in that takes all answers in the order of its journal.
"""

import msgspec
import pytest
from kill_points import WORKERS, run_killed
from matrix_runs import overrides_of, run
from nightly_cases import first_and_nightly

from flstream.runs.journal import read_journal

INSTANTS = [
    ("record", 7, "server"),
    ("training", 3, "all"),
    *[("record", time, "server") for time in (2, 9, 12, 15, 18, 21, 24)],
    *[("training", time, "all") for time in (1, 4, 5, 7, 9)],
    *[("fold", time, "launcher") for time in (1, 2)],
    *[("evaluation", time, "all") for time in (1, 6)],
    *[("rename", time, "server") for time in (2, 3)],
]


def arriving(order="arrival"):
    """The overrides of the matrix's asynchronous workflow, with another order of answers."""
    *workflow, width = overrides_of("buffered", "tiny")
    return [each.replace("order=oldest", f"order={order}") for each in workflow] + [width, WORKERS]


def answered(folder):
    """The sites in the order in which the run in a folder has taken their answers."""
    effects = read_journal(folder / "events.jsonl").effects
    return [
        site
        for effect in effects
        if effect.name == "next"
        for site in msgspec.json.decode(effect.result)["train"]["sites"]
    ]


@pytest.mark.kills
@first_and_nightly(("point", "time", "victim"), INSTANTS, brief=2)
def test_a_run_killed_between_answers_is_that_of_its_order_in_one_go(
    point, time, victim, tmp_path, fork_server
):
    folder = tmp_path / "run"
    assert run_killed(folder, arriving(), point, time, victim), "it never came there"
    before = answered(folder)
    killed = run(folder, arriving(), resume=True)
    order = answered(folder)
    assert order[: len(before)] == before
    assert len(order) == 9
    in_one_go = arriving(f"[{', '.join(order)}]")
    assert run(tmp_path / "again", in_one_go) == killed
