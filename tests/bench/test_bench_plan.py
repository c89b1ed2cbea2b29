"""What a bench measures, and what it predicts of it."""

import pytest

from flstream.bench.exchange import Need, fits
from flstream.bench.plan import MODES, Case, Plan
from flstream.simulation.forecasting.fitting import Available

MIB, GIB = 1 << 20, 1 << 30


def make_plan(**changes):
    values = {
        "model_bytes": GIB,
        "clients": 2,
        "modes": MODES,
        "chunk_sizes": [2 * MIB],
        "tensors": None,
        "repeat": 1,
    }
    return Plan(**values | changes)


def needs(plan):
    return {case.mode: plan.need(case) for case in plan.cases}


def test_each_mode_is_measured_at_each_chunk_size_and_native_once():
    plan = make_plan(modes=["pull", "native"], chunk_sizes=[256 << 10, 2 * MIB])
    assert plan.cases == [Case("pull", 256 << 10), Case("pull", 2 * MIB), Case("native", None)]
    assert [plan.label(case) for case in plan.cases] == ["pull 256 KiB", "pull 2 MiB", "native"]


def test_with_one_chunk_size_a_case_is_called_like_its_mode():
    plan = make_plan()
    assert [plan.label(case) for case in plan.cases] == list(MODES)


@pytest.mark.parametrize("mode", MODES)
def test_every_client_is_a_process_of_its_own(mode):
    plan = make_plan(clients=40, modes=[mode], tensors=7)
    job = plan.job(plan.cases[0])
    assert job.clients.workers == 40
    assert job.streaming.mode == ("pull" if mode == "file" else mode)
    assert job.model.args == {"size": GIB, "tensors": 7}
    assert (job.train.script.name == "file_client.py") == (mode == "file")


@pytest.mark.parametrize("clients", [1, 4, 16])
def test_native_needs_every_model_two_more_times(clients):
    need = needs(make_plan(clients=clients))
    assert need["native"].memory > need["pull"].memory + 2 * clients * GIB - 100 * MIB
    assert need["native"].server > (clients + 1) * GIB
    assert need["pull"].server < 96 * MIB
    assert need["push"] == need["pull"]


def test_a_file_takes_disk_instead_of_the_clients_memory():
    need = needs(make_plan(clients=4))
    assert need["file"].client < 64 * MIB
    assert need["file"].memory < need["pull"].memory - 2 * GIB
    assert need["file"].disk == need["pull"].disk + 4 * GIB


def test_the_builder_of_the_initial_model_holds_it_in_every_mode():
    assert needs(make_plan(clients=1))["file"].memory > GIB


@pytest.mark.parametrize(
    ("memory", "disk", "expected"),
    [(10, 10, True), (9, 10, False), (10, 9, False), (10, None, True)],
)
def test_what_fits_has_enough_of_both(memory, disk, expected, tmp_path):
    need = Need(memory=10, server=1, client=1, disk=10)
    assert fits(need, Available(memory, disk, tmp_path)) is expected
