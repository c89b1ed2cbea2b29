"""Some of the seeded kills of ``benchmarks/kills.py``, in jobs of fewer rounds."""

import pytest
from kills import SCENARIOS, Reference, disturbed, mismatched

pytestmark = pytest.mark.nightly

ROUNDS = {"fedavg": 8, "cyclic": 3, "exchange": 3, "odd_even": 4, "odd_even_20": 5}
ROUNDS |= {"fedper": 4, "ditto": 4, "feddyn": 4}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Scenarios of fewer rounds by name, each with a run of it that nobody disturbed."""
    known = {}

    def of(name):
        if name not in known:
            scenario = SCENARIOS[name]
            scenario = scenario._replace(settings=(*scenario.settings, f"rounds={ROUNDS[name]}"))
            known[name] = scenario, Reference.of(scenario, tmp_path_factory.mktemp(name))
        return known[name]

    return of


@pytest.mark.parametrize("case", range(4))
def test_a_kill_at_a_random_instant_changes_no_bit(undisturbed, tmp_path, case):
    scenario, reference = undisturbed("fedavg")
    result = disturbed(scenario, reference, tmp_path, case)
    assert result.verdict == "", f"killed {result.killed}"


@pytest.mark.parametrize("name", ["cyclic", "exchange", "odd_even", "fedper", "ditto", "feddyn"])
def test_a_kill_in_any_workflow_changes_no_bit(undisturbed, tmp_path, name):
    scenario, reference = undisturbed(name)
    # Case 1 kills everything, or a worker where that is among the victims.
    result = disturbed(scenario, reference, tmp_path, 1)
    assert result.verdict == "", f"killed {result.killed}"


def test_many_kills_of_one_run_of_a_users_workflow_change_no_bit(undisturbed, tmp_path):
    scenario, reference = undisturbed("odd_even_20")
    result = disturbed(scenario._replace(kills=4), reference, tmp_path, 0)
    assert result.verdict == "", f"killed {result.killed}"
    assert result.killed.count(" in round ") == 4


def test_a_program_that_draws_sites_outside_of_run_is_refused_on_resume(tmp_path):
    result = mismatched(SCENARIOS["unseeded"], tmp_path, 0)
    assert result.verdict == "", f"killed {result.killed}"
