"""Runs whose workers are on nodes: agents of one machine here, each a command of its own."""

import os
import re
import signal
from pathlib import Path

import pytest
from cluster_support import Cluster, finish
from nightly_cases import first_and_nightly
from safetensors.numpy import load_file


@pytest.fixture
def cluster(tmp_path):
    made = []

    def make(**how):
        made.append(Cluster(tmp_path / f"job{len(made)}", **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


def added(cluster):
    """What the sites have added to the model in all rounds together, in float64."""
    return float(load_file(cluster.run / "global.safetensors")["b"][0, 0])


# What a site has trained on so far is in its state, and in every number that it sends.
STATEFUL = """
history = Path(flare.system_info()["state_dir"]) / "history.txt"
before = history.read_text() if history.exists() else ""
history.write_text(before + f"{round} ")
print(f"{site} in round {round} had {before!r}\\nit is in {HERE}", flush=True)
for tensor in model.params.values():
    tensor += 100.0 * len(before.split())
Path("left.txt").write_text(site)
"""


@first_and_nightly(
    ("options", "sees_run"),
    [
        ([], False),
        ([], True),
        (["workflow.type=swarm"], True),
        (["clients.parallel=2", "network={ up = 50 Mbit, latency = 2 ms, loss = 1% }"], True),
    ],
    ids=["own files", "own", "swarm", "shared, with links"],
)
def test_the_bits_are_those_of_a_run_on_one_machine(cluster, options, sees_run):
    """Also where the job comes to the nodes, states travel, and logs come back."""
    here = cluster(extra=STATEFUL)
    options = [word for each in options for word in ("--set", each)]
    assert here.local(*options).returncode == 0
    sim = here.simulate(*options)
    if not sees_run:
        here.hide(sim)
    agents = [here.join(sim, "--cpus", "2") for _ in range(2)]
    status, text = finish(sim)
    assert status == 0, text
    assert text.count(" joined, with room for 2 workers") == 2
    for agent in agents:
        status, text = finish(agent)
        assert status == 0, text
        assert "the run is over\n" in text
        assert sees_run or re.search("files that training code left .* such as sites/site-.", text)
    assert here.digest() == here.digest("local")
    assert not here.key_file.exists()
    summary = here.summary()
    assert summary["warnings"] == []
    # The memory of every site came from its node.
    memory = summary["memory"]
    assert all(each["peak_rss"] > each["idle_rss"] > 0 for each in memory["clients"].values())
    nodes = {each["node"] for each in memory["clients"].values()}
    assert nodes == memory["nodes"].keys()
    assert len(nodes) == 2
    page = (here.run / "report.html").read_text()
    assert all(f"<td>{node}</td>" in page or f">{node}<" in page for node in nodes)
    for number in range(1, 5):
        logs = []
        for run in ("run", "local"):
            site = here.folder / run / "sites" / f"site-{number}"
            lines = (site / "log.txt").read_text().splitlines()
            kept = sorted(os.listdir(site / "state"))
            logs.append(([each for each in lines if not each.startswith("it is in ")], kept))
            places = {Path(each[9:]) for each in lines if each.startswith("it is in ")}
            if run == "run" and not sees_run:
                assert here.folder not in places
                assert not any(place.exists() for place in places)
        assert logs[0] == logs[1]
        assert len(logs[0][0]) == 2
    assert here.nothing_lives()


WAITS = """
if site == "site-1" and round == 1:
    report("trains")
    wait_for("never")
"""


@first_and_nightly("way", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=str)
def test_a_node_that_is_lost_takes_its_sites_with_it_and_the_next_round_has_all(cluster, way):
    here = cluster(extra=WAITS)
    sim = here.simulate()
    agents = [here.join(sim) for _ in range(2)]
    here.await_report()
    doomed = next(each for each in agents if "site-1" in here.processes_below(each))
    doomed.send_signal(way)
    status, text = finish(sim)
    assert status == 0, text
    doomed.send_signal(signal.SIGCONT)
    assert finish(doomed)[0] == {signal.SIGKILL: -9, signal.SIGTERM: 130, signal.SIGSTOP: 1}[way]
    summary = here.summary()
    failed = {each["site"] for each in summary["failures"] if each["round"] == 1}
    assert "site-1" in failed
    assert len(failed) <= 2  # its other site may have answered by then
    [warning] = [each for each in summary["warnings"] if each.startswith("node ")]
    assert way != signal.SIGSTOP or "gave no sign of life for 10 s" in warning
    assert len(summary["memory"]["nodes"]) == 2  # the lost one too, however early it was
    # Exactly the mean of those who are left, and then that of all.
    left = [2.0**number for number in range(1, 5) if f"site-{number}" not in failed]
    assert added(here) == pytest.approx(sum(left) / len(left) + 30 / 4)
    assert here.nothing_lives()


@pytest.mark.nightly
def test_a_site_finds_its_state_on_another_node(cluster):
    waits = WAITS.replace("round == 1", "round == 2")
    here = cluster(extra=STATEFUL + waits, rounds=3)
    sim = here.simulate("--set", "clients.count=2")
    here.hide(sim)
    agents = [here.join(sim, "--cpus", "1") for _ in range(2)]
    here.await_report()
    next(each for each in agents if "site-1" in here.processes_below(each)).kill()
    status, text = finish(sim)
    assert status == 0, text
    assert sorted(finish(each)[0] for each in agents) == [-signal.SIGKILL, 0]
    # Its second training came to nothing, so the third goes on with what the first has left.
    log = (here.run / "sites" / "site-1" / "log.txt").read_text()
    assert "site-1 in round 3 had '1 '" in log
    assert len(set(re.findall("it is in (.*)", log))) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["launcher", "node"])
def test_nothing_lives_on_after_a_kill_and_the_run_goes_on_here(cluster, victim):
    here = cluster(
        extra="""
        if round == 2 and not (HERE / "again").exists() and site == "site-1":
            (HERE / "again").touch()
            report("trains")
            wait_for("never")
        """,
        rounds=3,
    )
    shared = ["--set", "clients.parallel=1", "--set", "clients.min_updates=4"]
    sim = here.simulate("--set", "engine.wait=20s", *shared, nodes=1)
    agent = here.join(sim)
    here.await_report()
    (sim if victim == "launcher" else agent).kill()
    status, text = finish(agent)
    if victim == "launcher":
        assert status == 1
        assert "the run is gone" in text
    else:
        assert finish(sim)[0] == 1
        assert "no node is left" in here.summary()["error"]
        assert "--resume" in here.summary()["error"]
    assert here.nothing_lives()
    again = here.local("--resume", *shared, run="run")
    assert again.returncode == 0, again.stderr
    assert here.local(*shared).returncode == 0
    assert here.digest() == here.digest("local")


@pytest.mark.nightly
def test_ctrl_c_stops_the_run_and_its_nodes(cluster):
    here = cluster(extra=WAITS)
    sim = here.simulate()
    agents = [here.join(sim) for _ in range(2)]
    here.await_report()
    sim.send_signal(signal.SIGINT)
    assert finish(sim)[0] == 130
    assert [finish(agent)[0] for agent in agents] == [0, 0]
    assert here.summary()["status"] == "stopped"
    assert here.nothing_lives()


@first_and_nightly(
    ("options", "words"),
    [
        (["--bind", "0.0.0.0:0"], "stands for every address of this machine"),
        (["--nodes", "0"], "from 1"),
        (["--bind", "nonsense"], "HOST:PORT"),
        (["--bind", "192.0.2.1:1"], "cannot be listened on"),
        (["--key-file", "/nowhere/key"], "cannot be written"),
        (["--key-file", "client.py"], "is there already"),
        (["--engine", "slurm"], "one of"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(cluster, options, words):
    here = cluster()
    code = (here.folder / "client.py").read_text()
    status, text = finish(here.simulate(*options))
    assert status == 2, text
    assert words in text
    assert "Traceback" not in text
    # What was wrong can be put right, and nothing is in the way.
    assert not here.run.exists() or list(here.run.iterdir()) == []
    assert not here.key_file.exists()
    assert (here.folder / "client.py").read_text() == code


def test_a_node_needs_the_key_of_the_run(cluster):
    here = cluster()
    sim = here.simulate("--set", "engine.wait=60s", nodes=1)
    where = ("join", here.address(sim), "--wait", "0.3s", "--key-file")
    for mode, status, words in ((0o600, 1, "another key"), (0o644, 2, "can be read by others")):
        key = here.folder / "other"
        key.write_text("ab" * 32)
        key.chmod(mode)
        done = finish(here.flstream(*where, str(key)))
        assert done[0] == status
        assert words in done[1]
    assert sim.poll() is None  # it waits for who has the key
    sim.send_signal(signal.SIGINT)
    assert finish(sim)[0] == 130


@pytest.mark.nightly
def test_words_that_make_no_sense_are_refused(cluster):
    here = cluster()
    (here.folder / "other").write_text("ab" * 32)
    (here.folder / "other").chmod(0o600)
    for name, words in (("none", "there is no key file"), ("other", "cannot be reached")):
        words_of = ("join", "127.0.0.1:1", "--key-file", name, "--wait", "0.3s")
        status, text = finish(here.flstream(*words_of))
        assert status == 1
        assert words in text
    os.mkfifo(here.folder / "pipe", 0o600)
    key = ("--key-file", "none")
    for words in (
        *[
            ("join", each, *key)
            for each in ("nowhere", "127.0.0.1", "127.0.0.1:0", "1.2.3.4:70000")
        ],
        ("join", "127.0.0.1:1", *key, "--wait", "soon"),
        ("join", "127.0.0.1:1", *key, "--cpus", "9" * 30),
        ("join", "127.0.0.1:1", "--key-file", "pipe", "--wait", "0.3s"),
        ("simulate", "job.conf", "--bind", "127.0.0.1:0", *key),
    ):
        status, text = finish(here.flstream(*words), 20)
        assert (status, "Traceback" in text) == (2, False), text


@pytest.mark.nightly
@pytest.mark.parametrize("make", ["changed", "large", "outside", "runs", "link", "swarm"])
def test_a_job_that_cannot_be_sent_is_refused_with_a_sentence(cluster, tmp_path, make):
    here, options = cluster(rounds=1), []
    script, words = here.folder / "client.py", "client.py is not among what is sent"
    if make == "large":
        words = "has 101.0 MiB, most of it in data, where 100 MiB at most are sent"
        (here.folder / "data").mkdir()
        with (here.folder / "data" / "all.bin").open("wb") as file:
            file.truncate(101 << 20)
    elif make == "outside":
        words = "other.py is not among what is sent to it of the job's folder"
        (tmp_path / "other.py").write_text(script.read_text())
        options = ["--set", "train.script=../other.py"]
    elif make == "runs":
        (here.folder / "runs").mkdir()
        script.rename(here.folder / "runs" / "client.py")
        options = ["--set", "train.script=runs/client.py"]
    elif make == "link":
        script.rename(tmp_path / "client.py")
        script.symlink_to(tmp_path / "client.py")
    elif make == "swarm":  # whose sites fold
        words, options = "which the node of site-", ["--set", "workflow.type=swarm"]
    sim = here.simulate("--set", "engine.wait=10s", *options, nodes=1)
    here.hide(sim)
    if make == "changed":
        words = "client.py than the run, which was changed after the run had begun"
        script.write_text("print('other code')")
    text = finish(here.join(sim))[1]
    status, said = finish(sim)
    assert status == 1
    assert words in " ".join(f"{text} {said} {here.summary()['error']}".split())
