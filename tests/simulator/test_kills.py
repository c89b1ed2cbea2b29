"""Some of the seeded kills of ``benchmarks/kills.py``, in jobs of fewer rounds."""

import importlib.util
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.fixture(scope="module")
def kills():
    spec = importlib.util.spec_from_file_location("kills", KILLS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # As long as a run of so many rounds takes: a later instant would find it finished.
    module.ROUNDS, module.LATEST = 8, 2.0
    return module


@pytest.fixture(scope="module")
def prepared(kills, tmp_path_factory):
    """The folder with the jobs, and what comes of them if nobody disturbs them."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "model.py").write_text(kills.MODEL)
    (folder / "client.py").write_text(kills.CLIENT)
    (folder / "own.conf").write_text(kills.JOB % (kills.ROUNDS, 4))
    (folder / "shared.conf").write_text(kills.JOB % (kills.ROUNDS, 2))
    code, expected, error = kills.simulate(kills.command(folder, "client", folder / "undisturbed"))
    assert code == 0, error
    return folder, expected


@pytest.mark.parametrize("case", range(4))
def test_a_kill_at_a_random_instant_changes_no_bit(kills, prepared, case):
    folder, expected = prepared
    _, summary, _, instant = kills.disturbed(folder, case)
    for key in ("metrics", "best", "rounds_completed"):
        assert summary[key] == expected[key], f"killed at {instant:.2f} s"
    assert summary["model"]["digest"] == expected["model"]["digest"]
