"""The rounds of FedAvg, with a federation that only writes down what it is asked for."""

from pathlib import Path

import pytest

from flstream.client.messages import Trained
from flstream.job import load_job
from flstream.telemetry.events import Transfer
from flstream.workflows.fedavg import fedavg
from flstream.workflows.federation import GlobalModel, Training


class Recorder:
    """A federation that notes its calls."""

    def __init__(self):
        self.sites = ["site-1", "site-2", "site-3"]
        self.calls = []

    def initial_model(self):
        return GlobalModel(0, Path("round-0"))

    def train(self, model, cohort):
        self.calls.append(("train", model.round, len(cohort)))
        updates = {site: Trained(1, b"", 1.0, "FULL", "pytorch", {}) for site in cohort}
        return Training(updates, Transfer(), 0.0)

    def aggregate(self, model, training, fold):
        self.calls.append(("aggregate", model.round, len(training.updates)))
        return GlobalModel(model.round + 1, Path("next"))

    def evaluate(self, model, cohort):
        self.calls.append(("evaluate", model.round, len(cohort)))
        return {}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "model.py").write_text("def build(): ...")
    (tmp_path / "client.py").write_text("")

    def run(every):
        (tmp_path / "job.conf").write_text(f"""
            name = j, rounds = 5
            clients {{ count = 3, per_round = 2 }}
            model {{ factory = "model:build" }}
            train {{ script = client.py }}
            workflow {{ args {{ evaluate_every = {every} }} }}
        """)
        federation = Recorder()
        fedavg(federation, load_job(tmp_path / "job.conf"))
        return federation.calls

    return run


def test_each_round_trains_the_last_model_and_aggregates_what_came_of_it(run):
    calls = [call for call in run(0) if call[0] != "evaluate"]
    assert calls == [(what, number, 2) for number in range(5) for what in ("train", "aggregate")]


def test_all_sites_evaluate_every_so_many_rounds_and_after_the_last(run):
    evaluated = [call for call in run(2) if call[0] == "evaluate"]
    assert evaluated == [("evaluate", n, 3) for n in (2, 4, 5)]
    assert not [call for call in run(0) if call[0] == "evaluate"]
