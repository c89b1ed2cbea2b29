"""Runs whose workers are on nodes: agents of one machine here, each a command of its own."""

import json
import os
import signal
import socket
import time

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


def added(cluster, run="run"):
    """What the sites have added to the model in all rounds together, in float64."""
    return float(load_file(cluster.folder / run / "global.safetensors")["b"][0, 0])


LINKS = ["--set", "network={ up = 50 Mbit, latency = 2 ms, loss = 1% }"]
EXCHANGES = [
    [],
    ["--set", "workflow.type=swarm"],
    ["--set", "clients.parallel=2"],
    LINKS,
    [*LINKS, "--set", "workflow.type=swarm"],
]
NAMES = ["own", "swarm", "shared", "links", "swarm with links"]


@first_and_nightly("options", EXCHANGES, ids=NAMES)
def test_the_bits_are_those_of_a_run_on_one_machine(cluster, options):
    here = cluster()
    assert here.local(*options).returncode == 0
    sim = here.simulate(*options)
    agents = [here.join(sim, "--cpus", "2") for _ in range(2)]
    status, text = finish(sim)
    assert status == 0, text
    assert text.count(" joined, with room for 2 workers") == 2
    assert "\nOn the nodes: " in text
    assert "on one of 2 nodes" in (here.run / "report.html").read_text()
    for agent in agents:
        status, text = finish(agent)
        assert status == 0, text
        assert "joined the run" in text
        assert text.endswith("the run is over\n")
    assert here.digest() == here.digest("local")
    assert not here.key_file.exists()
    summary = here.summary()
    assert summary["warnings"] == []
    # The memory of every site came from its node.
    assert all(
        site["peak_rss"] > site["idle_rss"] > 0 for site in summary["memory"]["clients"].values()
    )
    assert len(summary["memory"]["nodes"]) == 2
    assert all(summary["memory"]["nodes"].values())
    nodes = {each["node"] for each in summary["memory"]["clients"].values()}
    assert nodes == summary["memory"]["nodes"].keys()
    assert "node" not in summary["memory"]["server"]
    page = (here.run / "report.html").read_text()
    assert "By node" in page
    assert all(f"<td>{node}</td>" in page or f">{node}<" in page for node in nodes)
    assert here.nothing_lives(5)


@pytest.mark.nightly
def test_a_node_that_is_killed_takes_its_sites_with_it_and_the_next_round_has_all(cluster):
    here = cluster(
        extra="""
        if site == "site-1" and round == 1:
            (HERE / "trains").touch()
            wait_for("never")
        """,
        rounds=2,
    )
    sim, agents = training(here)
    # Of a process that the agent has started, whose parent is the agent's fork server.
    doomed = next(each for each in agents if "site-1" in logs_of(here, each))
    doomed.kill()
    status, text = finish(sim)
    assert status == 0, text
    summary = here.summary()
    failed = {each["site"] for each in summary["failures"] if each["round"] == 1}
    assert "site-1" in failed
    assert len(failed) <= 2  # its other site may have answered by then
    assert any(each.startswith("node ") for each in summary["warnings"])
    assert len(summary["memory"]["nodes"]) == 2  # the lost one too, however early it was
    # Exactly the mean of those who are left, and then that of all.
    left = [2.0**number for number in range(1, 5) if f"site-{number}" not in failed]
    assert added(here) == pytest.approx(sum(left) / len(left) + 30 / 4)
    assert here.nothing_lives(5)


def training(cluster):
    """Start a run on two nodes, and wait until a site's script says that it trains."""
    sim = cluster.simulate()
    agents = [cluster.join(sim) for _ in range(2)]
    cluster.await_file("trains")
    return sim, agents


def logs_of(cluster, agent):
    """Which sites have a process below an agent."""
    import psutil

    events = [each for each in cluster.events() if each["kind"] == "process_ready"]
    below = {each.pid for each in psutil.Process(agent.pid).children(recursive=True)}
    return {each["process"] for each in events if each["pid"] in below}


@pytest.mark.nightly
def test_a_killed_worker_is_replaced(cluster):
    here = cluster(
        extra="""
        if site == "site-3" and round == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    sim = here.simulate()
    agents = [here.join(sim) for _ in range(2)]
    assert finish(sim)[0] == 0
    assert [finish(agent)[0] for agent in agents] == [0, 0]
    assert [each["site"] for each in here.summary()["failures"]] == ["site-3"]
    assert added(here) == pytest.approx((2 + 4 + 16) / 3 + 30 / 4)


@pytest.mark.nightly
def test_a_silent_node_is_given_up(cluster):
    here = cluster(
        extra="""
        if site == "site-2" and round == 1:
            (HERE / "trains").touch()
            wait_for("never")
        """
    )
    sim, agents = training(here)
    hung = next(each for each in agents if "site-2" in logs_of(here, each))
    began = time.monotonic()
    os.kill(hung.pid, signal.SIGSTOP)
    status, text = finish(sim)
    assert status == 0, text
    assert time.monotonic() - began < 25
    assert "gave no sign of life for 10 s" in " ".join(here.summary()["warnings"])
    os.kill(hung.pid, signal.SIGCONT)
    assert finish(hung)[0] == 1
    assert here.nothing_lives(5)


@pytest.mark.nightly
def test_a_node_that_joins_late_is_used(cluster):
    here = cluster(
        extra="""
        if site == "site-1" and round == 1:
            (HERE / "trains").touch()
            wait_for("joined")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    sim = here.simulate(nodes=1)
    agents = [here.join(sim, "--cpus", "4")]
    here.await_file("trains")
    agents.append(here.join(sim, "--cpus", "4"))
    while "-2 joined" not in sim.stdout.readline():
        pass  # until the launcher says it of the second one
    (here.folder / "joined").touch()
    status, text = finish(sim)
    assert status == 0, text
    assert [finish(agent)[0] for agent in agents] == [0, 0]
    nodes = list(here.summary()["memory"]["nodes"])
    samples = map(json.loads, (here.run / "memory.jsonl").read_text().splitlines())
    where = {each["node"] for each in samples if each["process"] == "site-1"}
    assert where == set(nodes)
    assert len(where) == 2


@pytest.mark.nightly
def test_where_no_node_is_left_the_run_says_so_and_can_go_on_here(cluster):
    here = cluster(
        extra="""
        if site == "site-1" and round == 2 and not (HERE / "again").exists():
            (HERE / "again").touch()
            os.kill(agent().pid, signal.SIGKILL)
            wait_for("never")
        """,
        rounds=3,
    )
    shared = ["--set", "clients.parallel=1", "--set", "clients.min_updates=4"]
    sim = here.simulate("--set", "engine.wait=20s", *shared, nodes=1)
    agent = here.join(sim)
    assert finish(sim)[0] == 1
    assert "no node is left" in here.summary()["error"]
    assert "--resume" in here.summary()["error"]
    assert finish(agent)[0] == -signal.SIGKILL
    again = here.local("--resume", *shared, run="run")
    assert again.returncode == 0, again.stderr
    assert added(here) == pytest.approx(3 * 30 / 4)


@pytest.mark.nightly
def test_nothing_lives_on_after_the_launcher_is_killed_and_the_run_goes_on_elsewhere(cluster):
    here = cluster(
        extra="""
        if site == "site-1" and round == 2 and not (HERE / "again").exists():
            (HERE / "again").touch()
            wait_for("never")
        """,
        rounds=3,
    )
    sim = here.simulate()
    agents = [here.join(sim) for _ in range(2)]
    here.await_file("again")
    sim.kill()
    assert here.nothing_lives(5)
    for agent in agents:
        status, text = finish(agent)
        assert status == 1
        assert "the run is gone" in text
    assert here.local("--resume", run="run").returncode == 0
    assert here.local().returncode == 0
    assert here.digest() == here.digest("local")


@pytest.mark.nightly
def test_two_runs_share_a_node(cluster):
    first, second = cluster(), cluster()
    sims = [each.simulate(nodes=1) for each in (first, second)]
    agents = [each.join(sim) for each, sim in zip((first, second), sims, strict=True)]
    assert [finish(each)[0] for each in (*sims, *agents)] == [0, 0, 0, 0]
    assert first.digest() == second.digest()


@pytest.mark.nightly
def test_strangers_change_nothing(cluster):
    here = cluster(
        extra="""
        if site == "site-1" and round == 1:
            (HERE / "trains").touch()
            wait_for("go")
        """
    )
    sim = here.simulate()
    host, port = here.address(sim).split(":")
    stranger = here.folder / "other-key"
    stranger.write_text("ab" * 32)
    stranger.chmod(0o600)
    agents = [here.join(sim) for _ in range(2)]
    here.await_file("trains")
    wrong = here.flstream("join", here.address(sim), "--key-file", str(stranger), "--wait", "0.5s")
    sockets = []
    for text in (b"", b"GET / HTTP/1.0\r\n\r\n", b"FLSA\1", os.urandom(4096), b"FLSA" + bytes(92)):
        sock = socket.create_connection((host, int(port)))
        sock.sendall(text)
        sockets.append(sock)
    status, text = finish(wrong)
    assert status == 1
    assert "another key" in text
    (here.folder / "go").touch()
    assert finish(sim)[0] == 0
    assert [finish(agent)[0] for agent in agents] == [0, 0]
    for sock in sockets:
        sock.close()
    assert here.summary()["warnings"] == []
    assert here.local("--set", "clients.min_updates=1").returncode == 0
    assert here.digest() == here.digest("local")


@pytest.mark.nightly
def test_ctrl_c_stops_the_run_and_its_nodes(cluster):
    here = cluster(
        extra="""
        (HERE / "trains").touch()
        wait_for("never")
        """
    )
    sim, agents = training(here)
    sim.send_signal(signal.SIGINT)
    assert finish(sim)[0] == 130
    assert [finish(agent)[0] for agent in agents] == [0, 0]
    assert here.summary()["status"] == "stopped"
    assert here.nothing_lives(5)


@pytest.mark.nightly
def test_an_agent_that_is_stopped_leaves_the_run_to_the_others(cluster):
    here = cluster(
        extra="""
        if round == 1 and site == "site-1":
            (HERE / "trains").touch()
            wait_for("never")
        """
    )
    sim, agents = training(here)
    stopped = next(each for each in agents if "site-1" in logs_of(here, each))
    stopped.send_signal(signal.SIGTERM)
    assert finish(stopped)[0] == 130
    status, text = finish(sim)
    assert status == 0, text
    assert here.nothing_lives(5)


def test_a_run_without_its_nodes_fails_with_the_command_that_they_need(cluster):
    here = cluster()
    status, text = finish(here.simulate("--set", "engine.wait=0.3s"))
    assert status == 1
    assert "0 of 2 nodes joined within 0.3 s" in text
    assert "each of them runs flstream join 127.0.0.1:" in here.summary()["error"]
    assert not here.key_file.exists()


@first_and_nightly(
    ("options", "words"),
    [
        (["--bind", "0.0.0.0:0"], "stands for every address of this machine"),
        (["--bind", "nonsense"], "HOST:PORT"),
        (["--bind", "192.0.2.1:1"], "cannot be listened on"),
        (["--key-file", "/nowhere/key"], "cannot be written"),
        (["--engine", "slurm"], "one of local, join"),
        (["--nodes", "0"], "from 1"),
    ],
    brief=2,
)
def test_what_cannot_be_is_refused_with_a_sentence(cluster, options, words):
    here = cluster()
    status, text = finish(here.simulate(*options))
    assert status == 2, text
    assert words in text
    assert "Traceback" not in text
    # What was wrong can be put right, and nothing is in the way.
    assert not here.run.exists() or list(here.run.iterdir()) == []
    assert not here.key_file.exists()


def test_a_key_file_that_is_there_is_not_overwritten(cluster):
    here = cluster()
    here.key_file.write_text("mine")
    status, text = finish(here.simulate())
    assert status == 2
    assert "is there already" in text
    assert here.key_file.read_text() == "mine"
    assert list(here.run.iterdir()) == []


@pytest.mark.nightly
def test_a_node_waits_for_the_run_and_gives_up_with_a_sentence(cluster):
    here = cluster()
    where = ("join", "127.0.0.1:1", "--key-file", str(here.key_file), "--wait")
    status, text = finish(here.flstream(*where, "0.3s"))
    assert status == 1
    assert "there is no key file" in text
    here.key_file.write_text("ab" * 32)
    status, text = finish(here.flstream(*where, "0.3s"))
    assert status == 2
    assert "can be read by others" in text
    here.key_file.chmod(0o600)
    status, text = finish(here.flstream(*where, "0.3s"))
    assert status == 1
    assert "cannot be reached" in text
    assert finish(here.flstream(*where, "soon"))[0] == 2
    here.key_file.unlink()
    os.mkfifo(here.key_file, 0o600)
    status, text = finish(here.flstream(*where, "0.3s"), 20)
    assert status == 2
    assert "is no regular file" in text
    for address in ("nowhere", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000"):
        status, text = finish(here.flstream("join", address, "--key-file", "none"), 20)
        assert status == 2, text
    status, text = finish(
        here.flstream("join", "127.0.0.1:1", "--key-file", "x", "--cpus", "9" * 30)
    )
    assert status == 2
    assert "Traceback" not in text


def test_options_of_nodes_without_their_engine_are_refused(cluster):
    here = cluster()
    done = here.local("--bind", "127.0.0.1:0", "--key-file", "key")
    assert done.returncode == 2
    assert "are of --engine join; add it" in done.stderr
