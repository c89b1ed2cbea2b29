"""What apps do with a grid and with replies, beside what strategies do."""

import socket
from contextlib import closing
from typing import get_args

import numpy as np
import pytest
from flower_apps import CLIENT, SERVER, log_of
from test_flower_strategies import final, server
from training_scripts import of_kind

from flstream.compat.flower.program import RunCalls
from flstream.compat.flower.requests import AppCall, FromApp, Method
from flstream.errors import ProtocolError
from flstream.telemetry.events import EffectDone
from flstream.transport.messages import MessageChannel

MAIN = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    nodes = grid.get_node_ids()
    def message(node, kind, start, number):
        arrays = ArrayRecord({"w": Array(np.full(3, float(start)))})
        content = {"arrays": arrays, "config": ConfigRecord({"number": number})}
        return Message(RecordDict(content), nodes[node], kind)
    BODY
"""

ECHO = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
@app.evaluate()
def handle(msg, context):
    total = float(msg.content["arrays"]["w"].numpy().sum())
    metrics = {"number": msg.content["config"]["number"], "total": total}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
"""


def main_of(body):
    return MAIN.replace("BODY", body.strip().replace("\n", "\n    "))


def test_each_reply_belongs_to_its_message_whatever_the_models_and_types(apps):
    body = """
sent = [
    message(1, "train", 5, 0), message(0, "evaluate", 7, 1), message(0, "train", 5, 2),
    message(0, "train", 9, 3), message(2, "train", 5, 4), message(0, "train", 5, 5),
]
replies = grid.send_and_receive(sent)
for reply, one in zip(replies, sent):
    assert reply.metadata.reply_to_message_id == one.metadata.message_id
    assert reply.metadata.src_node_id == one.metadata.dst_node_id
print("found", [tuple(reply.content["metrics"].values()) for reply in replies])
replies.append(replies[0])
replies.sort(key=lambda reply: reply.content["metrics"]["number"])
assert len(replies + replies) == 14 and replies[1:3] == list(replies)[1:3]
"""
    run = apps.finish(main_of(body), ECHO)
    totals = [(0, 15.0), (1, 21.0), (2, 15.0), (3, 27.0), (4, 15.0), (5, 15.0)]
    assert f"found {totals}" in log_of(run)
    assert run.summary.rounds_completed == 1


def test_an_apps_process_can_call_the_methods_of_its_workflow_alone():
    assert all(hasattr(RunCalls, name) for name in get_args(Method))
    ours, theirs = socket.socketpair()
    with closing(MessageChannel(ours, "serverapp", FromApp)) as workflow, theirs:
        MessageChannel(theirs, "the server", FromApp).send(AppCall("until_end", []))
        with pytest.raises(ProtocolError, match=r"unreadable message: .*until_end"):
            workflow.receive(60)


def test_threads_share_a_grid(apps, jobs_in, tmp_path):
    body = """
from concurrent.futures import ThreadPoolExecutor
def ask(number):
    # The same arrays and settings for both, and some of a thread's own.
    sent = [message(node, "train", start, number % 2) for node in range(3) for start in (1, number)]
    replies = grid.send_and_receive(sent)
    for reply, one in zip(replies, sent, strict=True):
        assert reply.metadata.reply_to_message_id == one.metadata.message_id
        assert reply.metadata.src_node_id == one.metadata.dst_node_id
    return [tuple(reply.content["metrics"].values()) for reply in replies]
with ThreadPoolExecutor(2) as pool:
    print("found", list(pool.map(ask, range(2, 10))))
"""
    processes = apps._replace(jobs=jobs_in(tmp_path, engine=("engine.type=local",)))
    run = processes.finish(main_of(body), ECHO)
    expected = [[(n % 2, 3.0), (n % 2, 3.0 * n)] * 3 for n in range(2, 10)]
    assert f"found {expected}" in log_of(run)


def test_a_main_that_exits_with_0_has_ended(apps):
    run = apps.finish(SERVER + "    raise SystemExit(0)\n")
    assert run.summary.model.digest == apps.finish().summary.model.digest


def test_rounds_of_fedavg_are_folds_as_the_updates_come(apps):
    run = apps.finish(SERVER, CLIENT, "app.config.num-server-rounds=3")
    kinds = [each.name for each in of_kind(run, EffectDone)]
    # The first round shows that replies fit; after it the evaluations alone are read.
    assert kinds == ["remember", "train", *(["fold", "train", "report"] * 3)]


REWEIGHTED = """
class Reweighted(FedAvg):
    def aggregate_train(self, server_round, replies):
        for reply in replies:
            node = reply.content["metrics"]["num-examples"]
            reply.content["metrics"]["num-examples"] = 1 if node == 3 else 0
        return super().aggregate_train(server_round, replies)

class Twice(FedAvg):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies + [replies[0]])

class Keeping(FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.kept = arrays if server_round == 1 else self.kept
        return self.kept, metrics

class Renamed(FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord({name: Array(array.numpy()) for name, array in arrays.items()}), metrics

class Momentum(FedAvgM):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        changed = {name: Array(array.numpy() + 0.5) for name, array in arrays.items()}
        return ArrayRecord(changed), metrics
"""
MEAN = 14 / 6


@pytest.mark.parametrize(
    ("strategy", "added"),
    [
        ("Reweighted()", 2 * 3.0),
        ("Keeping()", MEAN),
        ("Renamed()", 2 * MEAN),
        # The server's momentum goes on from arrays that the strategy has changed.
        ("Momentum(server_momentum=0.5)", MEAN + 0.5 + 1.5 * MEAN + 0.5),
    ],
)
def test_a_strategy_may_change_what_it_is_given(apps, strategy, added):
    tensors = final(apps.finish(server(strategy, REWEIGHTED)))
    np.testing.assert_allclose(tensors["1"], np.full(4, 1 + added), rtol=1e-6)


def test_a_reply_that_is_given_twice_counts_twice(apps):
    found = final(apps.finish(server("Twice()", REWEIGHTED, rounds=1)))["1"][0] - 1
    # One of 1, 2 and 3 once more: which is drawn.
    assert min(abs(found - (14 + n * n) / (6 + n)) for n in (1, 2, 3)) < 1e-9


def test_replies_in_another_dtype_keep_that_of_the_model(apps):
    client = CLIENT.replace(
        "array + np.asarray(number, array.dtype)", "array.astype(float) + number"
    )
    assert apps.finish(SERVER, client).summary.model.digest == apps.finish().summary.model.digest


def test_replies_of_other_names_and_shapes_are_averaged_as_they_are(apps):
    client = CLIENT.replace("ArrayRecord(arrays)", "ArrayRecord([arrays[1], arrays[1][:2]])")
    ending = (
        SERVER
        + """
    assert [a.shape for a in result.arrays.to_numpy_ndarrays()] == [(4,), (2,)]
    print("mean", [float(a[0]) for a in result.arrays.to_numpy_ndarrays()])
"""
    )
    run = apps.finish(ending, client, "app.config.num-server-rounds=1")
    assert f"mean {[1 + 14 / 6] * 2}" in log_of(run)


def test_an_error_that_a_node_replies_with_keeps_its_code_and_its_state(apps):
    client = CLIENT.replace(
        "@app.train()", "from flwr.app import ConfigRecord, Error\n@app.train()"
    )
    client = client.replace(
        "    number = ",
        """    if context.node_config["partition-id"] == 1 and "seen" not in context.state:
        context.state["seen"] = ConfigRecord({"yes": True})
        return Message(Error(7, "no data yet"), reply_to=msg)
    number = """,
    )
    own = """
class Telling(FedAvg):
    def aggregate_train(self, server_round, replies):
        print("errors", [(r.error.code, r.error.reason) for r in replies if r.has_error()])
        return super().aggregate_train(server_round, replies)
"""
    lines = [
        line for line in log_of(apps.finish(server("Telling()", own), client)) if "errors" in line
    ]
    assert lines == ["errors [(7, 'no data yet')]", "errors []"]


def test_initial_arrays_that_differ_each_time_are_stored(apps):
    text = SERVER.replace("np.ones(4)", "np.random.default_rng().normal(size=4)")
    run = apps.finish(text)
    assert "store" in [each.name for each in of_kind(run, EffectDone)]


def test_draws_of_evaluate_fn_change_nothing(apps):
    text = SERVER.replace("FedAvg()", "FedAvg(fraction_train=0.7)")
    drawing = text.replace("num_rounds=", "evaluate_fn=score, num_rounds=")
    drawing += """
def score(server_round, arrays):
    import random, torch
    random.random(), np.random.rand(), torch.randn(1)
    return MetricRecord({"accuracy": 0.5})
"""
    assert apps.finish(drawing).summary.model.digest == apps.finish(text).summary.model.digest


def test_a_negative_weight_is_refused(apps):
    run = apps.run(SERVER, CLIENT.replace('"num-examples": number', '"num-examples": -number'))
    assert "the reply's weight 'num-examples' is -" in run.summary.error


@pytest.mark.parametrize(
    ("change", "flaw"),
    [
        ("arrays[1] = arrays[1][:2]", "array '1' has the shape [2], and in the message its shape"),
        ("del arrays[1]", "array '1' is missing, and in the message its shape was [4]"),
        ("arrays.append(arrays[1])", "array '2' has the shape [4], and in the message there was"),
    ],
)
def test_a_node_whose_arrays_stop_fitting_fails_by_its_name_and_theirs(apps, change, flaw):
    client = CLIENT.replace(
        "    metrics = MetricRecord(",
        f"""    if msg.content["config"]["server-round"] == 2 and number == 2:
        {change}
    metrics = MetricRecord(""",
        1,
    )
    run = apps.finish(SERVER, client)
    [failure] = run.summary.failures
    assert (failure.site, failure.round) == ("site-2", 2)
    assert f"the reply's {flaw}" in failure.reason
    assert "site-2: learner.py, line" in " ".join(log_of(run))
    # The others have 1 and 3 examples.
    np.testing.assert_allclose(final(run)["1"], np.full(4, 1 + MEAN + 10 / 4))
