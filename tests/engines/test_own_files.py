"""Nodes that do not see the run directory: the job comes to them, states travel, logs come back."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from cluster_support import Cluster, finish
from nightly_cases import first_and_nightly

# What a site has trained on so far is in its state, and in every number that it sends.
STATEFUL = """
import sys
folder = Path(flare.system_info()["state_dir"])
history = folder / "history.txt"
before = history.read_text() if history.exists() else ""
history.write_text(before + f"{round} ")
(folder / "nested" / str(round)).mkdir(parents=True)
(folder / "nested" / "link").unlink(missing_ok=True)
(folder / "nested" / "link").symlink_to(str(round))
print(f"{site} in round {round} had {before!r}", flush=True)
print(f"it is in {HERE}", flush=True)
for tensor in model.params.values():
    tensor += 100.0 * len(before.split())
Path("left.txt").write_text(site)
"""

# In the second round, a script waits for somebody, if it is told to.
WAITING = """
while round == 2 and "GO" in os.environ and not Path(os.environ["GO"]).exists():
    time.sleep(0.02)
"""


@pytest.fixture
def new_cluster(tmp_path):
    """Return a function that makes a cluster whose script does more, after what is in its state."""
    made = []

    def make(more="", rounds=3):
        made.append(Cluster(tmp_path / "job", extra=STATEFUL + more, rounds=rounds))
        return made[0]

    yield make
    for each in made:
        each.close()


def begin_apart(cluster, *options, nodes=2, join=("--cpus", "2")):
    """Start the job on nodes that do not see the run directory."""
    sim = cluster.simulate(*options, nodes=nodes)
    cluster.hide(sim)
    return sim, [cluster.join(sim, *join) for _ in range(nodes)]


def run_apart(cluster, *options, **more):
    """Run the job on such nodes; return what they print."""
    sim, agents = begin_apart(cluster, *options, **more)
    status, text = finish(sim)
    assert status == 0, text
    ended = [finish(each) for each in agents]
    assert [status for status, _ in ended] == [0] * len(agents), ended
    return [text for _, text in ended]


def site(cluster, number, run="run"):
    return cluster.folder / run / "sites" / f"site-{number}"


def printed(cluster, number, run="run"):
    """What a site has printed, but for where its node has its files."""
    lines = (site(cluster, number, run) / "log.txt").read_text().splitlines()
    return [each for each in lines if not each.startswith("it is in ")]


def places(cluster, number):
    """Where a site's nodes have had the job."""
    return set(re.findall("it is in (.*)", (site(cluster, number) / "log.txt").read_text()))


KINDS = {
    "own": {},
    "shared": {"clients.parallel": "2"},
    "push": {"streaming.mode": "push"},
    "native": {"streaming.mode": "native"},
    "command": {"train.command": '"python3 -u"'},
}


@pytest.mark.nightly
@first_and_nightly("kind", KINDS)
def test_all_is_as_on_one_machine(new_cluster, kind):
    here = new_cluster()
    values = {"workflow.args.evaluate_every": "1", **KINDS[kind]}
    options = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    assert here.local(*options).returncode == 0
    for text in run_apart(here, *options):
        assert "joined a run, with its files in" in text
        assert re.search(
            "files that training code left .* such as sites/site-./work/left.txt", text
        )
    assert here.digest() == here.digest("local")
    for number in range(1, 5):
        assert printed(here, number) == printed(here, number, "local") != []
        states = sorted(os.listdir(site(here, number) / "state"))
        assert states == sorted(os.listdir(site(here, number, "local") / "state")) != []
        (place,) = places(here, number)
        assert not place.startswith(str(here.folder))
        assert not Path(place).exists()
        assert sorted(os.listdir(site(here, number))) == ["log.txt", "state"]
    assert (here.run / "worker-1.log").exists() == (here.folder / "local/worker-1.log").exists()


@pytest.mark.nightly
def test_no_process_of_a_node_has_anything_to_do_with_the_run_directory(
    new_cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    here = new_cluster(WAITING)
    sim, agents = begin_apart(here)
    here.await_event(lambda event: event["kind"] == "round_started" and event["round"] == 2)
    processes = [psutil.Process(each.pid) for each in agents]
    processes += [each for all in processes for each in all.children(recursive=True)]
    places = set()
    for process in processes:
        with suppress(psutil.Error):
            paths = [each.path for each in process.open_files()]
            assert not [path for path in paths if path.startswith(str(here.folder))]
            places.add(Path(process.cwd()))
    assert {each.parent.name for each in places if each.name == "work"} == {
        f"site-{number}" for number in range(1, 5)
    }
    (tmp_path / "go").touch()
    assert finish(sim)[0] == 0


@pytest.mark.nightly
def test_a_site_that_is_late_ends_nothing(new_cluster):
    here = new_cluster('if round == 1 and site == "site-1":\n    time.sleep(1)\n')
    (here.folder / "client.py").write_text(
        (here.folder / "client.py").read_text() + "    time.sleep(0.01)\n"
    )
    options = ("--set", "clients.wait_after_min=0.3s")
    run_apart(here, *options)
    failures = {(each["site"], each["round"]) for each in here.summary()["failures"]}
    assert ("site-1", 1) in failures
    assert printed(here, 1)[-1] == "site-1 in round 3 had '2 '"


@pytest.mark.nightly
def test_states_are_thinned_out_as_on_one_machine(new_cluster):
    here = new_cluster(rounds=6)
    assert here.local().returncode == 0
    run_apart(here)
    for number in range(1, 5):
        states = sorted(os.listdir(site(here, number) / "state"))
        assert states == sorted(os.listdir(site(here, number, "local") / "state"))
        assert len(states) == 4


@pytest.mark.nightly
def test_a_site_finds_its_state_on_another_node(new_cluster, monkeypatch):
    here = new_cluster("""
while round == 2 and site == "site-1":
    log = Path(os.environ["LOG"])
    if log.exists() and "it is in" in log.read_text():  # of the first round, and it has come
        os.kill(agent().pid, signal.SIGKILL)
    time.sleep(0.02)
""")
    monkeypatch.setenv("LOG", str(site(here, 1) / "log.txt"))
    sim, agents = begin_apart(
        here,
        "--set",
        "clients.count=2",
        join=("--cpus", "1", "--folder", str(here.folder / "runs/nodes")),
    )
    status, text = finish(sim)
    assert status == 0, text
    assert sorted(finish(each)[0] for each in agents) == [-signal.SIGKILL, 0]
    # Its second training came to nothing, so the third goes on with what the first has left.
    assert printed(here, 1)[-1] == "site-1 in round 3 had '1 '"
    assert len(places(here, 1)) == 2
    assert printed(here, 2)[-1] == "site-2 in round 3 had '1 2 '"


@pytest.mark.nightly
def test_a_killed_run_goes_on_here_with_the_same_bits(new_cluster, tmp_path, monkeypatch):
    here = new_cluster(WAITING)
    assert here.local().returncode == 0
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    sim, agents = begin_apart(here)
    monkeypatch.delenv("GO")
    here.await_event(lambda event: event["kind"] == "round_started" and event["round"] == 2)
    sim.kill()
    for agent in agents:
        status, text = finish(agent)
        assert status == 1
        assert "the run is gone" in text
    assert here.nothing_lives(5)
    again = here.local("--resume", run="run")
    assert again.returncode == 0, again.stderr
    assert here.digest() == here.digest("local")
    assert printed(here, 1)[-1] == "site-1 in round 3 had '1 2 '"


@pytest.mark.nightly
@first_and_nightly("is_relative", [False, True])
def test_files_of_a_node_are_kept_where_they_are_asked_for(new_cluster, is_relative):
    here = new_cluster(rounds=1)
    (here.folder / "runs").mkdir()
    where = "runs/kept" if is_relative else str(here.folder / "runs/kept")
    (text,) = run_apart(here, nodes=1, join=("--cpus", "4", "--folder", where))
    assert "went with them" not in text
    (kept,) = (here.folder / "runs/kept").iterdir()
    assert (kept / "run/sites/site-1/work/left.txt").read_text() == "site-1"
    assert (kept / "job/job/client.py").is_file()


@pytest.mark.nightly
def test_arguments_have_the_paths_of_the_node(new_cluster, monkeypatch):
    here = new_cluster(
        'assert (Path(sys.argv[1]) / "model.py").exists() and sys.argv[1] == str(HERE), sys.argv\n'
        'assert sys.argv[2] == f"--other={HERE}/data," + os.environ["BESIDE"], sys.argv\n',
        rounds=1,
    )
    there = here.folder
    monkeypatch.setenv("BESIDE", f"{there}-2")
    run_apart(here, "--set", f'train.args="{there} --other={there}/data,{there}-2"')


@pytest.mark.nightly
@first_and_nightly(
    ("make", "words"),
    [
        ("large", "has 101.0 MiB, most of it in data, where 100 MiB at most are sent"),
        ("outside", "other.py is not among what is sent to it of the job's folder"),
        ("runs", "client.py is not among what is sent"),
        ("link", "client.py is not among what is sent"),
        ("changed", "client.py than the run, which was changed after the run had begun"),
    ],
)
def test_a_job_that_cannot_be_sent_is_refused_with_a_sentence(new_cluster, tmp_path, make, words):
    here, options = new_cluster(rounds=1), []
    if make == "large":
        (here.folder / "data").mkdir()
        with (here.folder / "data" / "all.bin").open("wb") as file:
            file.truncate(101 << 20)
    elif make == "outside":
        (tmp_path / "other.py").write_text((here.folder / "client.py").read_text())
        options = ["--set", "train.script=../other.py"]
    elif make == "runs":
        (here.folder / "runs").mkdir()
        (here.folder / "client.py").rename(here.folder / "runs" / "client.py")
        options = ["--set", "train.script=runs/client.py"]
    elif make == "link":
        (here.folder / "client.py").rename(tmp_path / "client.py")
        (here.folder / "client.py").symlink_to(tmp_path / "client.py")
    sim = here.simulate("--set", "engine.wait=15s", *options, nodes=1)
    here.hide(sim)
    if make == "changed":
        (here.folder / "client.py").write_text("print('other code')")
    status, text = finish(here.join(sim))
    assert status == 1
    assert words in " ".join(text.split()), text
    assert finish(here.join(sim))[0] == 1  # whoever tries again is told the same
    status, text = finish(sim)
    assert status == 1
    assert "0 of 1 nodes joined" in text
    assert words in here.summary()["error"]
    assert len(here.summary()["warnings"]) == 1
    assert any(words in each for each in here.summary()["warnings"])


@pytest.mark.nightly
def test_what_is_no_part_of_a_job_is_not_sent(new_cluster):
    here = new_cluster(
        'assert sorted(os.listdir(HERE)) == ["client.py", "job.conf", "model.py"]\n',
        rounds=1,
    )
    for name in ("runs/old", ".venv/lib", "env/lib", ".git", "__pycache__"):
        (here.folder / name).mkdir(parents=True)
        (here.folder / name / "large").write_bytes(bytes(1000))
    (here.folder / "env" / "pyvenv.cfg").touch()
    (here.folder / "elsewhere").mkdir()
    (here.folder / "elsewhere" / "events.jsonl").touch()  # a run directory
    os.mkfifo(here.folder / "pipe")
    run_apart(here)  # whose key is in the folder, too


@pytest.mark.nightly
def test_a_folder_that_a_link_leads_to_is_sent(new_cluster, tmp_path):
    here = new_cluster(rounds=1)
    here.folder.rename(tmp_path / "real")
    here.folder.symlink_to(tmp_path / "real")
    run_apart(here)


@pytest.mark.nightly
def test_a_state_that_is_too_large_fails_its_site_with_a_sentence(new_cluster):
    here = new_cluster(
        """
if site == "site-1":
    with (folder / "large").open("wb") as file:
        file.truncate((1 << 30) + 1)
""",
        rounds=1,
    )
    run_apart(here)
    (failure,) = here.summary()["failures"]
    assert failure["site"] == "site-1"
    assert "has 1.0 GiB, and 1 GiB at most travels" in failure["reason"]


@pytest.mark.nightly
def test_a_state_that_was_damaged_ends_the_run(new_cluster, monkeypatch):
    here = new_cluster("""
if round == 2 and site == "site-1":
    (kept,) = Path(os.environ["STATES"]).glob("effect-*/history.txt")
    kept.write_text("1 1 1")
    os.kill(agent().pid, signal.SIGKILL)
    time.sleep(60)
""")
    monkeypatch.setenv("STATES", str(site(here, 1) / "state"))
    sim, _ = begin_apart(
        here,
        "--set",
        "clients.count=2",
        join=("--cpus", "1", "--folder", str(here.folder / "runs/nodes")),
    )
    status, text = finish(sim)
    assert status == 1
    assert "that of site-1 after effect 1: " in text
    assert "and had" in text


@pytest.mark.nightly
def test_sites_that_fold_need_the_run_directory(new_cluster):
    here = new_cluster(rounds=1)
    sim, _ = begin_apart(here, "--set", "workflow.type=swarm")
    status, text = finish(sim)
    assert status == 1
    assert "which the node of site-" in " ".join(text.split())
