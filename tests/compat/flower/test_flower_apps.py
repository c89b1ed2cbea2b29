"""Flower apps with Flower's own strategies, run as they are."""

import json
import re

import numpy as np
import pytest
from flower_apps import CLIENT, PYPROJECT, SERVER, log_of
from safetensors.numpy import load_file

from flstream.errors import UsageError


def test_an_app_is_averaged_by_its_examples_and_its_metrics_are_the_runs_scores(apps):
    run = apps.finish()
    # Sites add 1, 2 and 3, and have as many examples: the mean of what they add is 14 / 6.
    step = 14 / 6
    final = load_file(run.directory.final_model)
    assert list(final) == ["1", "0"]
    np.testing.assert_allclose(final["0"], np.full((2, 3), 2 * step, np.float32), rtol=1e-6)
    np.testing.assert_allclose(final["1"], np.full(4, 1 + 2 * step), rtol=1e-12)
    assert final["0"].dtype == np.float32
    assert run.summary.rounds_completed == 2
    totals = [each.get("total") for each in run.summary.metrics]
    np.testing.assert_allclose(totals, [None, 4 + 10 * step, 4 + 20 * step][1:], rtol=1e-6)
    # Arrays come in the order in which main has given them.
    assert any(line.startswith("ended with [[[4.6") for line in log_of(run))


def test_bits_depend_neither_on_processes_nor_on_chunks_nor_on_workers(apps, jobs_in, tmp_path):
    digest = apps.finish().summary.model.digest
    processes = apps._replace(jobs=jobs_in(tmp_path, engine=("engine.type=local",)))
    for overrides in (["clients.parallel=1"], ["streaming.tensor_download_chunk_size=4 KiB"]):
        run = processes.finish(SERVER, CLIENT, *overrides)
        assert run.summary.model.digest == digest
    assert not (run.directory.path / "app").exists()


def test_settings_are_those_of_the_app_and_what_overrides_them(apps):
    apps.write(project=PYPROJECT.replace("lr = 0.5", 'lr = 0.5\n"with space" = "a b"'))
    job = apps.job()
    assert (job.name, job.rounds, job.clients.count) == ("little-app", 2, 3)
    settings = {"num-server-rounds": 2, "lr": 0.5, "inner.steps": 3, "with space": "a b"}
    assert json.loads(job.train.args["app"])["config"] == settings
    job = apps.job("app.config.lr=0.25", "seed=9", settings={"rounds": 5, "clients.count": 7})
    assert (job.rounds, job.clients.count, job.seed) == (5, 7, 9)
    app = json.loads(job.train.args["app"])
    assert (app["config"]["lr"], app["seed"]) == (0.25, 9)
    assert job.model.args["sites"] == 7
    assert apps.job("app.config.num-server-rounds=4").rounds == 4
    with pytest.raises(UsageError, match="rate is no setting of the app") as refused:
        apps.job("app.config.rate=1")
    assert "inner.steps, lr, num-server-rounds" in str(refused.value)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("clientapp =", "client =", "names no clientapp in"),
        ("little_app.server_app:app", "little_app.server_app", "as its serverapp in"),
        ("[tool.flwr.app.config]", "[tool.flwr.app]\nconfig = 3\n[other]", "config] is a table"),
        ("[project]", "[project", "cannot be read"),
    ],
)
def test_a_folder_that_describes_no_app_is_a_sentence(apps, before, after, sentence):
    apps.write(project=PYPROJECT.replace(before, after))
    with pytest.raises(UsageError, match=re.escape(sentence)):
        apps.job()


def test_a_context_has_partitions_and_a_state_that_stays_with_its_node(apps):
    client = """
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(msg, context):
        seen = context.state.config_records.get("seen", ConfigRecord({"times": 0, "nodes": []}))
        seen["times"] += 1
        seen["nodes"] = [*seen["nodes"], context.node_id]
        context.state["seen"] = seen
        config = context.node_config
        assert seen["nodes"] == [msg.metadata.dst_node_id] * seen["times"]
        assert context.run_config["inner.steps"] == 3
        assert msg.content["config"]["server-round"] == seen["times"]
        metrics = {"num-examples": 1, "times": seen["times"], **config}
        content = {"arrays": msg.content["arrays"], "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=msg)
    """
    server = SERVER.replace("FedAvg()", "FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=see)")
    server += """
def see(records, key):
    assert key == "num-examples"
    print("metrics", sorted(tuple(dict(r["metrics"]).items()) for r in records))
    return MetricRecord({"n": len(records)})
"""
    lines = [line for line in log_of(apps.finish(server, client)) if line.startswith("metrics")]
    assert lines[1] == "metrics " + str(
        [
            (("num-examples", 1), ("times", 2), ("partition-id", place), ("num-partitions", 3))
            for place in range(3)
        ]
    )


def test_mods_wrap_functions_and_a_lifespan_wraps_all(apps):
    client = """
    from contextlib import suppress
    from flwr.clientapp import ClientApp

    def mod(name):
        def around(msg, context, call_next):
            print("into", name, flush=True)
            reply = call_next(msg, context)
            print("out of", name, flush=True)
            return reply
        return around

    app = ClientApp(mods=[mod("first"), mod("second")])

    @app.lifespan()
    def lifespan(context):
        print("begin")
        yield
        print("end")

    @app.train(mods=[mod("third")])
    def train(msg, context):
        from little_app.rest import train
        return train(msg, context)

    @app.evaluate()
    def evaluate(msg, context):
        from little_app.rest import evaluate
        return evaluate(msg, context)
    """
    apps.write()
    (apps.folder / "little_app" / "rest.py").write_text(CLIENT)
    run = apps.finish(SERVER, client, "app.config.num-server-rounds=1")
    lines = (run.directory.site("site-1") / "log.txt").read_text().split("\n")
    at = lines.index("begin")
    names = ["first", "second", "third"]
    expected = [f"into {n}" for n in names] + [f"out of {n}" for n in reversed(names)]
    assert lines[at + 1 : at + 8] == [*expected, "end"]


def test_older_clients_have_lists_of_arrays(apps):
    client = """
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp
    from flwr.common import Context

    class Old(NumPyClient):
        def fit(self, parameters, config):
            assert config["lr"] == 0.5
            number = self.context.node_config["partition-id"] + 1
            return [p + p.dtype.type(number) for p in parameters], number, {"loss": 1.0 / number}

        def evaluate(self, parameters, config):
            return 0.5, 2, {"total": sum(float(p.sum()) for p in parameters)}

    def client_fn(context: Context):
        return Old().to_client()

    app = ClientApp(client_fn=client_fn)
    """
    assert apps.finish(SERVER, client).summary.model.digest == apps.finish().summary.model.digest


OLDER = """
from flwr.common import ndarrays_to_parameters
parameters = ndarrays_to_parameters([])
"""


@pytest.mark.parametrize(
    ("server", "client", "sentence"),
    [
        (
            SERVER.replace("result = ", "result = 1 / 0 or "),
            CLIENT,
            "server_app.py, line 12 raised",
        ),
        (SERVER.replace("FedAvg", "FedXgbBagging"), CLIENT, "XGBoost's trees is not there"),
        (SERVER.replace("ServerApp()", "ServerApp(server_fn=print)"), CLIENT, "older API"),
        (
            SERVER + OLDER,
            CLIENT,
            "ndarrays_to_parameters of flwr.common: it belongs to the older API",
        ),
        (SERVER, CLIENT.replace("app.train()", "app.train('x')"), "no function for messages of"),
        (SERVER, CLIENT + "\nimport flwr.simulation", "flstream has no flwr.simulation"),
        (SERVER.replace("FedAvg()", "FedAvg(min_train_nodes=4)"), CLIENT, "needs 4 nodes"),
    ],
)
def test_mistakes_are_a_sentence(apps, server, client, sentence):
    run = apps.run(server, client)
    assert run.summary.status == "failed"
    assert sentence in run.summary.error, run.summary.error


def test_a_run_says_how_it_was_resolved(apps):
    run = apps.finish()
    summary = json.loads(run.directory.summary.read_text())
    assert summary["job"] == "little-app"
    assert "compat.flower.program:flower" in (run.directory.path / "job.conf").read_text()


def test_what_is_read_of_a_record_is_the_readers_own(apps):
    client = CLIENT.replace(
        "numpy_ndarrays()", "numpy_ndarrays()\n    spoilt(msg.content['arrays'])", 1
    )
    client += """
def spoilt(record):
    for tensor in record.to_torch_state_dict().values():
        tensor.fill_(1000)
    for array in record.to_numpy_ndarrays():
        array[...] = 1000
    assert all((array.numpy() < 100).all() for array in record.values())
"""
    server = SERVER + "from little_app.client_app import spoilt\n"
    server = server.replace(
        'print("ended', 'spoilt(arrays), spoilt(result.arrays)\n    print("ended'
    )
    assert apps.finish(server, client).summary.model.digest == apps.finish().summary.model.digest
