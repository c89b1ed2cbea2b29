"""Flower's strategies beside their formulas, and strategies of an app's own."""

import math

import numpy as np
import pytest
from flower_apps import CLIENT, SERVER, log_of
from safetensors.numpy import load_file

# What each of three nodes adds, in a round, and how many examples it has.
ADDED = np.array([1.0, 2.0, 3.0])
WEIGHTS = ADDED / ADDED.sum()


def server(strategy, imports="", rounds=2, initial="np.zeros((2, 3), np.float32), np.ones(4)"):
    return f"""
import numpy as np
from flwr.app import *
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import *
{imports}
app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord([{initial}])
    result = ({strategy}).start(grid=grid, initial_arrays=arrays, num_rounds={rounds})
    print("ended with", result.arrays["1"].numpy().tolist())
"""


def final(run):
    return load_file(run.directory.final_model)


def adaptive(rule, eta, beta_1, beta_2, tau=1e-3):
    """The sum of two steps of an adaptive rule along the mean of what nodes add."""
    first = second = total = 0.0
    for number in (1, 2):
        difference = float(ADDED @ WEIGHTS)
        first = beta_1 * first + (1 - beta_1) * difference
        if rule == "adagrad":
            second += difference**2
        elif rule == "adam":
            second = beta_2 * second + (1 - beta_2) * difference**2
        else:
            sign = np.sign(second - difference**2)
            second -= (1 - beta_2) * difference**2 * sign
        rate = eta
        if rule == "adam":
            rate *= math.sqrt(1 - beta_2 ** (number + 1)) / (1 - beta_1 ** (number + 1))
        total += rate * first / (math.sqrt(second) + tau)
    return total


MEAN = float(ADDED @ WEIGHTS)
STRATEGIES = {
    "FedAvg()": 2 * MEAN,
    "FedProx(proximal_mu=0.1)": 2 * MEAN,
    "FedAvgM(server_learning_rate=0.5, server_momentum=0.9)": 0.5 * (MEAN + 1.9 * MEAN),
    "FedAdagrad(eta=0.1)": adaptive("adagrad", 0.1, 0.0, 0.0),
    "FedAdam(eta=0.1)": adaptive("adam", 0.1, 0.9, 0.99),
    "FedYogi(eta=0.1)": adaptive("yogi", 0.1, 0.9, 0.99),
    "FedMedian()": 2 * 2.0,
    "FedTrimmedAvg(beta=0.4)": 2 * 2.0,
    "Bulyan()": 2 * 2.0,
}


@pytest.mark.parametrize(("strategy", "added"), STRATEGIES.items(), ids=STRATEGIES)
def test_a_strategy_has_flowers_formula(apps, strategy, added):
    tensors = final(apps.finish(server(strategy)))
    np.testing.assert_allclose(tensors["1"], np.full(4, 1 + added), rtol=1e-9)
    np.testing.assert_allclose(tensors["0"], np.full((2, 3), added), rtol=1e-6)


@pytest.mark.parametrize("first", ["FedAdam(eta=0.1)", "FedAvgM(server_momentum=0.9)"])
def test_a_second_strategy_begins_with_moments_of_its_own(apps, first):
    two = f"""
class Both:
    def start(self, grid, initial_arrays, num_rounds):
        result = ({first}).start(grid=grid, initial_arrays=initial_arrays, num_rounds=1)
        return FedAdam(eta=0.1).start(grid=grid, initial_arrays=result.arrays, num_rounds=2)
"""
    before = final(apps.finish(server(first, rounds=1)))["1"]
    both = final(apps.finish(server("Both()", two)))["1"]
    np.testing.assert_allclose(both - before, STRATEGIES["FedAdam(eta=0.1)"], rtol=1e-9)


def test_strategies_that_keep_moments_do_not_take_turns(apps):
    turns = """
class Turns:
    def start(self, grid, initial_arrays, num_rounds):
        both = FedAdam(), FedAdam()
        for strategy in (*both, *both):
            result = strategy.start(grid=grid, initial_arrays=initial_arrays, num_rounds=1)
        return result
"""
    assert "so its moments are gone" in apps.run(server("Turns()", turns)).summary.error


@pytest.mark.parametrize(
    ("strategy", "added"),
    # Of 1, 4, 9 and 16, the sums of squares to the nearest two are 73, 34, 74 and 193.
    [("Krum()", 4.0), ("MultiKrum(num_nodes_to_select=2)", (1 * 1 + 4 * 4) / 5)],
)
def test_krum_chooses_the_nearest(apps, strategy, added):
    client = CLIENT.replace('["partition-id"] + 1', '["partition-id"] + 1\n    number *= number')
    run = apps.finish(server(strategy), client, "clients.count=4")
    np.testing.assert_allclose(final(run)["1"], np.full(4, 1 + 2 * added), rtol=1e-9)


OWN = """
class Halving(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 1.0 / server_round
        print("configure", config["lr"], arrays["1"].numpy().tolist(), flush=True)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = [reply for reply in replies if reply.content["metrics"]["num-examples"] > 1]
        names = list(replies[0].content["arrays"])
        return ArrayRecord({
            name: Array(sum(reply.content["arrays"][name].numpy() for reply in replies) / 4)
            for name in names
        }), MetricRecord({"replies": len(replies)})
"""


def test_a_strategy_of_ones_own_reads_replies_and_makes_arrays(apps):
    run = apps.finish(server("Halving()", OWN))
    # ((x + 2) + (x + 3)) / 4, twice, from 1 and from 0.
    one = (2 * 1 + 5) / 4
    assert final(run)["1"].tolist() == [(2 * one + 5) / 4] * 4
    lines = [line for line in log_of(run) if line.startswith("configure")]
    assert lines == [f"configure 1.0 {[1.0] * 4}", f"configure 0.5 {[one] * 4}"]
    assert not (run.directory.path / "app").exists()


def test_replies_that_were_looked_at_are_folded_all_the_same(apps):
    own = """
class Looking(FedAvg):
    def aggregate_train(self, server_round, replies):
        assert all(reply.has_content() for reply in replies)
        print("sums", sorted(float(r.content["arrays"]["1"].numpy().sum()) for r in replies))
        return super().aggregate_train(server_round, list(replies))
"""
    looked = apps.finish(server("Looking()", own))
    assert final(looked)["1"].tolist() == final(apps.finish(server("FedAvg()")))["1"].tolist()
    assert "sums [8.0, 12.0, 16.0]" in log_of(looked)


PRIVATE = "DifferentialPrivacy{}Clipping(FedAvg(), {})"
FIXED = "noise_multiplier=0.0, clipping_norm=0.5, num_sampled_clients=3"
ADAPTIVE = "noise_multiplier=0.0, num_sampled_clients=3, initial_clipping_norm=0.5"


@pytest.mark.parametrize(
    ("strategy", "mod"),
    [
        (PRIVATE.format("ServerSideFixed", FIXED), ""),
        (PRIVATE.format("ClientSideFixed", FIXED), "fixedclipping_mod"),
        (PRIVATE.format("ServerSideAdaptive", ADAPTIVE), ""),
        (PRIVATE.format("ClientSideAdaptive", ADAPTIVE), "adaptiveclipping_mod"),
    ],
)
def test_private_wrappers_clip_updates(apps, strategy, mod):
    client = CLIENT
    if mod:
        client = CLIENT.replace("@app.train()", f"@app.train(mods=[{mod}])")
        client = f"from flwr.clientapp.mod import {mod}\n{client}"
    run = apps.finish(server(strategy, rounds=1), client)
    # All updates are longer than 0.5, which is spread over ten numbers.
    np.testing.assert_allclose(final(run)["1"], np.full(4, 1 + 0.5 / math.sqrt(10)), rtol=1e-6)


def test_noise_of_a_private_wrapper_follows_from_the_seed(apps):
    noisy = server(PRIVATE.format("ServerSideFixed", FIXED.replace("0.0", "1.0")))
    digest = apps.finish(noisy).summary.model.digest
    assert apps.finish(noisy).summary.model.digest == digest
    assert apps.finish(noisy, CLIENT, "seed=8").summary.model.digest != digest


def test_a_round_in_which_all_nodes_fail_ends_the_run(apps):
    run = apps.run(SERVER, CLIENT.replace("number = ", "number = 1 / 0 + "))
    assert run.summary.status == "failed"
    assert "all 3 nodes failed: site-" in run.summary.error
    assert "client_app.py, line 11 raised ZeroDivisionError" in run.summary.error


def test_failed_nodes_are_replies_with_an_error(apps):
    own = """
class Counting(FedAvg):
    def aggregate_train(self, server_round, replies):
        print("errors", [(r.error.code, r.error.reason) for r in replies if r.has_error()])
        return super().aggregate_train(server_round, replies)
"""
    client = CLIENT.replace(
        "number = ", "assert context.node_config['partition-id'] != 1\n    number = "
    )
    run = apps.finish(server("Counting()", own), client)
    lines = [line for line in log_of(run) if line.startswith("errors")]
    assert len(lines) == 2
    assert "[(2, 'site-2: client_app.py, line 11 raised AssertionError" in lines[0]
    # Of the others, one and three examples.
    step = (1 * 1 + 3 * 3) / 4
    np.testing.assert_allclose(final(run)["1"], np.full(4, 1 + 2 * step))
