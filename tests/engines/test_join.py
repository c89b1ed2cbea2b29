"""Runs whose workers are on nodes: agents of one machine here, each a command of its own."""

import signal
from pathlib import Path

import pytest
from cluster_support import Cluster, finish
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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "sees_run"),
    [
        ([], False),
        (["workflow.type=swarm"], True),
    ],
    ids=["own files", "swarm"],
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
def test_a_node_that_is_lost_takes_its_sites_with_it_and_the_next_round_has_all(cluster):
    here = cluster(extra=WAITS)
    sim = here.simulate()
    agents = [here.join(sim) for _ in range(2)]
    here.await_report()
    doomed = next(each for each in agents if "site-1" in here.processes_below(each))
    doomed.kill()
    status, text = finish(sim)
    assert status == 0, text
    failed = {each["site"] for each in here.summary()["failures"] if each["round"] == 1}
    assert "site-1" in failed
    assert len(failed) <= 2  # its other site may have answered by then
    # Exactly the mean of those who are left, and then that of all.
    left = [2.0**number for number in range(1, 5) if f"site-{number}" not in failed]
    assert added(here) == pytest.approx(sum(left) / len(left) + 30 / 4)
    assert here.nothing_lives()


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
