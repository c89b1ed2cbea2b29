"""Runs of apps that were broken off, and resumed."""

import os
import select
import signal
import subprocess
import sys

import psutil
import pytest
from flower_apps import CLIENT, SERVER, log_of
from test_flower_strategies import OWN, final, server
from training_scripts import of_kind

from flstream.errors import UsageError
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.forecast import Available, forecast, lacks, plain_layout
from flstream.telemetry.events import EffectDone

LOOP = """
import random
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    nodes, total = list(grid.get_node_ids()), np.zeros(20_000)
    for number in range(context.run_config["num-server-rounds"]):
        chosen = random.sample(nodes, 2)
        asked = RecordDict({"ask": ConfigRecord({"number": number})})
        messages = [Message(asked, node, "query.numbers") for node in chosen]
        for reply in grid.send_and_receive(messages):
            total += reply.content["numbers"]["values"].numpy()
            assert reply.metadata.src_node_id in chosen
            assert reply.metadata.reply_to_message_id in {m.metadata.message_id for m in messages}
        messages = []
        for place, node in enumerate(nodes):
            arrays = ArrayRecord({"sum": Array(total * place)})
            messages.append(Message(RecordDict({"total": arrays}), node, "train"))
        numbers = grid.push_messages(messages)
        replies = list(grid.pull_messages(numbers))
        assert not list(grid.pull_messages(numbers))
        print("seen", [reply.content["found"]["sum"] for reply in replies], flush=True)
        BREAK
"""

NODES = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query("numbers")
def numbers(msg, context):
    number, place = msg.content["ask"]["number"], context.node_config["partition-id"]
    values = np.random.normal(number, 1 + place, 20_000)
    content = RecordDict({"numbers": ArrayRecord({"values": Array(values)})})
    return Message(content, reply_to=msg)

@app.train()
def train(msg, context):
    kept = context.state.metric_records.get("kept", MetricRecord({"sum": 0.0}))
    kept["sum"] += float(msg.content["total"]["sum"].numpy().sum())
    context.state["kept"] = kept
    return Message(RecordDict({"found": MetricRecord(dict(kept))}), reply_to=msg)
"""

BREAK = """
from pathlib import Path
mark = Path(__file__).with_name("break-at")
if mark.exists() and mark.read_text() == str({number}):
    mark.unlink()
    raise SystemExit("broken off")
"""


def indented(text, spaces):
    return text.strip().replace("\n", "\n" + " " * spaces)


def broken(apps, run, at):
    """Break a run of the app that was written last off at a point."""
    package = apps.folder / "little_app"
    package.mkdir(parents=True, exist_ok=True)
    (package / "break-at").write_text(str(at))
    ended = run()
    assert ended.summary.status == "failed"
    assert "raised SystemExit: broken off" in ended.summary.error
    return ended


def lines_of(run, word):
    """The lines that the ServerApp has printed last, if it was resumed."""
    lines = log_of(run)
    begins = [place for place, line in enumerate(lines) if line.startswith("flstream: ")]
    return [line for line in lines[begins[-1] if begins else 0 :] if line.startswith(word)]


def test_messages_whose_replies_nobody_looks_at_are_sent(apps):
    ignoring = LOOP.replace(
        "numbers = grid.push_messages(messages)", "grid.send_and_receive(messages)"
    )
    ignoring = ignoring.replace("replies = list(grid.pull_messages(numbers))", "replies = []")
    ignoring = ignoring.replace("assert not list(grid.pull_messages(numbers))", "")
    run = apps.finish(ignoring.replace("BREAK", ""), NODES)
    # A query and a training in each round.
    trained = [each for each in of_kind(run, EffectDone) if each.name == "train"]
    assert len(trained) == 4


@pytest.mark.parametrize("at", [0, 1])
def test_a_grid_loop_ends_in_the_same_bits(apps, at):
    loop = LOOP.replace("BREAK", indented(BREAK.format(number="number"), 8))
    expected = lines_of(apps.finish(loop, NODES), "seen")
    assert len(expected) == 2
    run = broken(apps, lambda: apps.run(loop, NODES), at)
    assert lines_of(apps.resume(run), "seen")[-2:] == expected


@pytest.mark.parametrize("at", [1, 2])
def test_a_strategy_of_ones_own_ends_in_the_same_bits(apps, at):
    point = indented(BREAK.format(number="server_round"), 8)
    own = OWN.replace("return ArrayRecord({", f"{point}\n        return ArrayRecord({{")
    expected = final(apps.finish(server("Halving()", own)))["1"].tolist()
    run = broken(apps, lambda: apps.run(server("Halving()", own)), at)
    resumed = apps.resume(run)
    assert final(resumed)["1"].tolist() == expected
    trained = [
        line for line in resumed.directory.events.read_text().splitlines() if '"train"' in line
    ]
    assert trained


HALT = """
    from pathlib import Path
    halts = Path(__file__).parent / "halts"
    if {number} == 2 and halts.exists():
        halts.write_text("x")
        __import__("signal").pause()
"""


@pytest.mark.parametrize("place", ["server", "client"])
def test_an_app_whose_processes_are_all_killed_ends_in_the_same_bits(apps, tmp_path, place):
    at_server = (
        HALT.format(number="server_round").replace("\n", "\n    ") + "    return ArrayRecord({"
    )
    own = OWN.replace("return ArrayRecord({", at_server) if place == "server" else OWN
    at_client = HALT.format(number='msg.content["config"]["server-round"]') + "    number ="
    client = CLIENT.replace("    number =", at_client) if place == "client" else CLIENT
    app = (server("Halving()", own, rounds=3), client)
    expected = apps.finish(*app).summary.model.digest
    halts = apps.folder / "little_app" / "halts"
    os.mkfifo(halts)
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "flstream", "simulate", apps.folder, "--run-dir", folder]
    with subprocess.Popen([*command, "--quiet"], start_new_session=True) as launcher:
        with open(os.open(halts, os.O_RDWR)) as at_halt:
            assert select.select([at_halt], [], [], 300)[0]
        everyone = psutil.Process(launcher.pid).children(recursive=True)
        os.killpg(launcher.pid, signal.SIGKILL)
    assert len(everyone) >= 4
    assert psutil.wait_procs(everyone, timeout=60)[1] == []
    halts.unlink()
    directory = RunDirectory.reopen("little-app", folder)
    assert not directory.summary.exists()
    assert apps.resume_in(directory).summary.model.digest == expected


def test_evaluate_fn_is_not_called_again_for_what_it_has_scored(apps):
    point = indented(BREAK.format(number="server_round"), 4)
    text = (
        SERVER.replace("num_rounds=", "evaluate_fn=score, num_rounds=")
        + f"""
def score(server_round, arrays):
    print("scored", server_round, flush=True)
    {point}
    return MetricRecord({{"accuracy": 0.5 + 0.1 * server_round}})
"""
    )
    run = broken(apps, lambda: apps.run(text), 2)
    resumed = apps.resume(run)
    assert [line for line in log_of(resumed) if line.startswith("scored")] == [
        *("scored 0", "scored 1", "scored 2"),
        "scored 2",
    ]
    assert resumed.summary.best.value == pytest.approx(0.7)
    assert resumed.summary.model.digest == apps.finish(text).summary.model.digest


ROUNDS = "context.run_config['num-server-rounds']"


@pytest.mark.parametrize("text", [SERVER, server("Halving()", OWN, ROUNDS)])
def test_a_finished_run_resumes_to_more_rounds(apps, text):
    number = "    number = "
    client = CLIENT.replace(number, f"    assert {ROUNDS} in (2, 4)\n{number}")
    run = apps.resume(apps.finish(text, client), "rounds=4")
    assert run.summary.rounds_completed == 4
    assert run.summary.model.digest == apps.finish(text, client, "rounds=4").summary.model.digest


def test_a_run_ends_early_where_its_job_says_so(apps):
    text = (
        SERVER.replace("num_rounds=", "evaluate_fn=score, num_rounds=")
        + """
def score(server_round, arrays):
    return MetricRecord({"accuracy": 0.5 + 0.1 * server_round})
"""
    )
    run = apps.finish(text, CLIENT, "app.config.num-server-rounds=9", "stop_when=accuracy >= 0.7")
    assert run.summary.rounds_completed == 2
    assert "The run has ended early, as its job says" in " ".join(log_of(run))


def test_an_app_that_asks_for_something_else_on_replay_is_refused(apps):
    loop = LOOP.replace("BREAK", indented(BREAK.format(number="number"), 8))
    run = broken(apps, lambda: apps.run(loop, NODES), 1)
    apps.write(loop.replace('"number": number', '"number": number + 1'), NODES)
    with pytest.raises(Exception, match="effect 2 of the workflow was ask"):
        apps.resume(run)


def test_a_damaged_content_is_a_sentence(apps):
    loop = LOOP.replace("BREAK", indented(BREAK.format(number="number"), 8))
    run = broken(apps, lambda: apps.run(loop, NODES), 1)
    for path in (run.directory.path / "app").glob("*.records"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(AssertionError, match="was changed; start a new run"):
        apps.resume(run)


def test_without_resume_replies_go_at_once_and_a_resume_is_refused(apps):
    own = OWN.replace(
        "names = list",
        "from pathlib import Path\n"
        "        folder = Path(replies[0].content['arrays'].origin.grid._folder)\n"
        "        print('on disk', len(list(folder.glob('reply-*'))), flush=True)\n"
        "        names = list",
    )
    text = server("Halving()", own, rounds=3)
    kept = apps.finish(text, CLIENT, "checkpoints.keep=1")
    dropped = apps.finish(text, CLIENT, "app.resume=false", "checkpoints.keep=1")
    assert kept.summary.model.digest == dropped.summary.model.digest
    # Those of nodes 2 and 3 are read.
    assert lines_of(kept, "on disk") == [f"on disk {count}" for count in (0, 2, 4)]
    assert lines_of(dropped, "on disk") == ["on disk 0"] * 3
    assert len(list(dropped.directory.path.glob("checkpoints/*.safetensors"))) <= 2

    point = indented(BREAK.format(number="server_round"), 8)
    broken_own = OWN.replace("return ArrayRecord({", f"{point}\n        return ArrayRecord({{")
    text = server("Halving()", broken_own)
    run = broken(apps, lambda: apps.run(text, CLIENT, "app.resume=false"), 2)
    with pytest.raises(UsageError, match=r"replies were not kept \(app.resume = false\)"):
        apps.resume(run, "app.resume=false")


def test_the_forecast_counts_replies_that_stay(apps):
    layout = plain_layout(1 << 30)

    def forecast_of(server_app, *overrides):
        apps.write(server_app)
        job = apps.job(*overrides)
        need = forecast(job, layout)
        tight = Available(1 << 50, need.disk_bytes - 1, apps.folder)
        return need.disk_bytes, [lack.change for lack in lacks(job, layout, need, tight)]

    plain, _ = forecast_of(SERVER)
    own, [advice] = forecast_of(server("Halving()", OWN))
    # Of two rounds and three nodes.
    assert own - plain == 2 * 3 * layout.nbytes
    assert advice.startswith("set app.resume = false (6 GiB of them for updates that are kept)")
    assert forecast_of(server("Halving()", OWN), "app.resume=false")[0] == plain
