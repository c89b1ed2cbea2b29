"""Runs whose workers are on nodes: agents of one machine here, each a command of its own."""

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
        (["workflow.type=swarm"], True),
        (["clients.parallel=2", "network={ up = 50 Mbit, latency = 2 ms, loss = 1% }"], True),
    ],
    ids=["own files", "swarm", "shared, with links"],
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
    for command in sim, *agents:
        status, text = finish(command)
        assert status == 0, text
    assert here.digest() == here.digest("local")
    assert not here.key_file.exists()
    summary = here.summary()
    assert summary["warnings"] == []
    # The memory of every site came from its node.
    nodes = {each["node"] for each in summary["memory"]["clients"].values()}
    assert len(nodes) == 2
    for number in range(1, 5):
        logs = []
        for run in ("run", "local"):
            site = here.folder / run / "sites" / f"site-{number}"
            lines = (site / "log.txt").read_text().splitlines()
            logs.append([each for each in lines if not each.startswith("it is in ")])
            places = {Path(each[9:]) for each in lines if each.startswith("it is in ")}
            assert sees_run or run == "local" or not any(place.exists() for place in places)
        assert logs[0] == logs[1]
        assert len(logs[0]) == 2
    assert here.nothing_lives()


WAITS = """
if site == "site-1" and round == 1:
    report("trains")
    wait_for("never")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=str)
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
    failed = {each["site"] for each in here.summary()["failures"] if each["round"] == 1}
    assert "site-1" in failed
    assert len(failed) <= 2  # its other site may have answered by then
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


@first_and_nightly(
    ("options", "words"),
    [
        (["--bind", "0.0.0.0:0"], "stands for every address of this machine"),
        (["--bind", "192.0.2.1:1"], "cannot be listened on"),
        (["--key-file", "client.py"], "is there already"),
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


@pytest.mark.nightly
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
