"""Links between nodes and the launcher that break, fall silent, or are tried by strangers."""

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress

import numpy as np
import psutil
import pytest
from cluster_support import Cluster, finish
from link_support import TO_LAUNCHER, TO_NODE, Relay
from safetensors.numpy import load_file
from test_join import added, logs_of
from test_join_engine import FakeAgent, Run, started, starting

from flstream.engines import join
from flstream.engines.engine import WorkerSockets
from flstream.engines.node_messages import KillWorker, StartWorker, WorkerEnded
from flstream.transport.authentication import (
    GREETING_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Greeting,
    StartToken,
)

HANDSHAKE_BYTES = GREETING_BYTES + PROOF_BYTES

# Bytes of a model that takes its time, and how many of them are let through.
LARGE, SOME = 32 << 20, 12 << 20
OF_LARGE = ("--set", f"model.args.elements={LARGE // 4}")

# The way of a model to a node, and that of its update: the connection, and the direction.
DOWNLOAD, UPLOAD = ("down", TO_NODE), ("up", TO_LAUNCHER)

ALL = {f"site-{number}" for number in range(1, 5)}


class Linked:
    """A run on two nodes, each of which is connected by way of a relay of its own.

    Attributes:
        sim: The command of the run.
        relays: The relays.
        agents: The commands of the nodes.
    """

    def __init__(self, here, stack, *options, sources=("127.0.0.1", "127.0.0.1")):
        self.here = here
        self._stack = stack
        self.sim = here.simulate(*options)
        self.relays = [self.relay(each) for each in sources]
        self.agents = []

    def relay(self, source="127.0.0.1"):
        return self._stack.enter_context(Relay(self.here.address(self.sim), source))

    def join(self):
        for relay in self.relays:
            self.agents.append(self.agent(relay))
        return self

    def agent(self, relay):
        key = ("--key-file", str(self.here.key_file))
        return self.here.flstream("join", relay.address, *key, "--cpus", "2")

    def begin(self, way=None):
        """Have the nodes join, and wait until the first one is amid models, or all sites train."""
        if way is not None:
            self.relays[0].hold(*way, SOME)
        if way == UPLOAD:
            (self.here.folder / "go").touch()
        self.join()
        if way is None:
            for site in ALL:
                self.here.await_file(f"trains-{site}")
        else:
            self.relays[0].await_links(2, lambda link: link.role == way[0] and link.held)
        return self

    def sites(self, agent):
        """The two sites of a node."""
        found = logs_of(self.here, self.agents[agent]) & ALL
        assert len(found) == 2
        return found

    def link_of(self, site, role):
        """The connection of a site's worker that has a role."""
        is_of = {"kind": "process_ready", "process": site}
        event = self.here.await_event(lambda each: is_of.items() <= each.items())
        ends = {each.laddr.port for each in psutil.Process(event["pid"]).net_connections("tcp")}
        links = [link for relay in self.relays for link in relay.links(role)]
        (found,) = [link for link in links if link.port in ends]
        return found

    def await_output(self, words, seconds=60):
        """Read what the run prints until it says something, and return the line."""
        watch = threading.Timer(seconds, self.sim.kill)  # upon which there is no more to read
        watch.start()
        try:
            for line in self.sim.stdout:
                if words in line:
                    return line
        finally:
            watch.cancel()
            watch.join()
        raise AssertionError(f"the run did not say {words!r}")


@pytest.fixture
def cluster(tmp_path):
    with ExitStack() as stack:
        made = []

        def make(**how):
            made.append(Cluster(tmp_path / f"job{len(made)}", **how))
            stack.callback(made[-1].close)
            return made[-1]

        yield make


@pytest.fixture
def linked(cluster):
    with ExitStack() as stack:
        yield lambda here, *options, **how: Linked(here, stack, *options, **how)


def family(agent):
    """The processes of a node: its agent, and all below it."""
    top = psutil.Process(agent.pid)
    return [top, *top.children(recursive=True)]


def ended(processes, seconds):
    """Whether processes end in time; one that nobody has asked for its status has ended, too."""
    until = time.monotonic() + seconds
    while [each for each in processes if lives(each)]:
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def lives(process):
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def failed(here):
    """The sites that have failed, by round."""
    found = {}
    for each in here.summary()["failures"]:
        found.setdefault(each["round"], set()).add(each["site"])
    return found


def mean(sites):
    """What the model gets in a round, exactly."""
    return sum(2.0 ** int(each[5:]) for each in sites) / len(sites)


def all_but(sites):
    return ALL - sites


def assert_model_is(here, value):
    """Every element of the last model has a value, to the bit."""
    for name, tensor in load_file(here.run / "global.safetensors").items():
        assert np.array_equal(tensor, np.full_like(tensor, value)), (name, np.unique(tensor))


# Training code starts a process of its own, which is to end with it.
HAS_CHILD = """
if round == 1:
    __import__("subprocess").Popen(["sleep", "600"])
"""

# Sites train, and then go on, when the test lets them.
GATED = """
if round == 1:
    (HERE / f"trains-{site}").touch()
    wait_for("go")
else:
    wait_for("looked")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("way", [None, DOWNLOAD, UPLOAD], ids=["training", "download", "upload"])
def test_a_link_that_falls_silent_costs_the_node_and_no_more(cluster, linked, way):
    """Nothing passes, not even the end of a connection: only the silence tells."""
    here = cluster(extra=HAS_CHILD + GATED)
    run = linked(here, *OF_LARGE).begin(way)
    lost, doomed = run.sites(0), family(run.agents[0])
    began = time.monotonic()
    run.relays[0].silence()
    (here.folder / "go").touch()
    assert "gave no sign of life for 10 s" in run.await_output("warning: node ", 25)
    assert time.monotonic() - began < 20
    status, text = finish(run.agents[0], 30)
    assert time.monotonic() - began < 20
    assert status == 1
    assert "the run is gone: it gave no sign of life for 10 s" in text
    assert ended(doomed, 1)
    (here.folder / "looked").touch()
    status, text = finish(run.sim)
    assert status == 0, text
    assert finish(run.agents[1])[0] == 0
    assert failed(here) == {1: lost}
    assert_model_is(here, mean(all_but(lost)) + mean(ALL))
    assert here.nothing_lives(5)


@pytest.mark.nightly
@pytest.mark.parametrize("way", [DOWNLOAD, UPLOAD], ids=["download", "upload"])
def test_a_node_that_is_killed_amid_a_model_is_in_no_mean(cluster, linked, way):
    here = cluster(extra=GATED)
    run = linked(here, *OF_LARGE, "--set", "clients.min_updates=2").begin(way)
    lost = run.sites(0)
    for process in family(run.agents[0]):
        with suppress(psutil.NoSuchProcess):  # it has ended with the one before it
            process.kill()
    (here.folder / "go").touch()
    (here.folder / "looked").touch()
    status, text = finish(run.sim)
    assert status == 0, text
    assert finish(run.agents[0])[0] == -signal.SIGKILL
    assert finish(run.agents[1])[0] == 0
    assert [each.passed[way[1]] for each in run.relays[0].links(way[0])] == [SOME, SOME]
    assert failed(here) == {1: lost}
    assert_model_is(here, mean(all_but(lost)) + mean(ALL))
    assert here.nothing_lives(5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("role", "options"),
    [
        *[(role, ()) for role in ("agent", *WorkerSockets._fields)],
        *[(role, ("--set", "workflow.type=swarm")) for role in WorkerSockets._fields],
    ],
    ids=lambda each: each if isinstance(each, str) else "swarm" if each else "own",
)
def test_a_connection_that_is_cut_costs_its_sites_a_round_at_most(cluster, linked, role, options):
    """Whatever else lives and is connected; sites that fail twice in a row are asked no more."""
    here = cluster(extra=GATED, rounds=3)
    run = linked(here, *options).begin()
    if role == "agent":
        may_fail = run.sites(0)
        run.relays[0].links(role)[0].cut()
        status, text = finish(run.agents[0])
        assert status == 1
        assert "the run is gone" in text
    else:
        may_fail = {"site-2"}
        run.link_of("site-2", role).cut()
    (here.folder / "go").touch()
    (here.folder / "looked").touch()
    status, text = finish(run.sim, 20)
    assert status == 0, text
    assert [finish(each)[0] for each in run.agents] == [int(role == "agent"), 0]
    lost = failed(here)
    assert all(each <= may_fail for each in lost.values())
    assert sum(map(len, lost.values())) <= len(may_fail), lost
    means = [mean(all_but(lost.get(each, set()))) for each in (1, 2, 3)]
    assert added(here) == pytest.approx(sum(means))
    assert here.nothing_lives(5)


@pytest.mark.nightly
@pytest.mark.parametrize("way", [DOWNLOAD, UPLOAD], ids=["download", "upload"])
def test_workers_whose_connection_is_cut_amid_a_model_are_replaced(cluster, linked, way):
    here = cluster(extra=GATED)
    run = linked(here, *OF_LARGE)
    relay = run.relays[0]
    relay.cut(*way, SOME)
    if way == UPLOAD:
        (here.folder / "go").touch()
    run.join()
    relay.await_links(2, lambda link: link.is_cut)
    relay.mend()
    lost = all_but(run.sites(1))
    (here.folder / "go").touch()
    (here.folder / "looked").touch()
    status, text = finish(run.sim)
    assert status == 0, text
    assert [finish(agent)[0] for agent in run.agents] == [0, 0]
    assert not any(each.startswith("node ") for each in here.summary()["warnings"])
    assert failed(here) == {1: lost}
    assert_model_is(here, mean(all_but(lost)) + mean(ALL))
    assert here.nothing_lives(5)


def crowd(stack, address, count, said=b""):
    """Connections of strangers that say something, and then nothing more."""
    host, port = address.split(":")
    for _ in range(count):
        sock = stack.enter_context(socket.create_connection((host, int(port)), 10))
        with suppress(ConnectionError):  # it was closed already
            sock.sendall(said)


def replayed(address, recorded):
    """Say again what a node has said, at its pace; return what is answered to each part."""
    host, port = address.split(":")
    answers = []
    with socket.create_connection((host, int(port)), 10) as sock:
        for said, due in (
            (recorded[:GREETING_BYTES], NONCE_BYTES),
            (recorded[GREETING_BYTES:HANDSHAKE_BYTES], PROOF_BYTES),
            (recorded[HANDSHAKE_BYTES:], 1),
        ):
            answer = b""
            with suppress(ConnectionError):
                sock.sendall(said)
                answer = sock.recv(due, socket.MSG_WAITALL)
            answers.append(len(answer))
    return answers


@pytest.mark.nightly
def test_strangers_who_have_overheard_nodes_get_nowhere(cluster, linked):
    here = cluster(
        extra="""
        if site == "site-1" and round == 1:
            (HERE / "trains").touch()
            wait_for("go")
        """
    )
    run = linked(here)
    address = here.address(run.sim)
    with ExitStack() as strangers:
        crowd(strangers, address, 200)
        run.join()
        here.await_file("trains")
        agent = run.relays[0].links("agent")[-1]
        workers = [run.relays[1].links(role)[0] for role in WorkerSockets._fields]
        assert all(len(each.recorded) >= HANDSHAKE_BYTES for each in (agent, *workers))
        # Once with the key of the run, which is still of use to nodes; it is the proof that is not.
        assert len(agent.recorded) > HANDSHAKE_BYTES
        assert replayed(address, bytes(agent.recorded)) == [NONCE_BYTES, 0, 0]
        for each in workers:
            assert replayed(address, bytes(each.recorded)) == [0, 0, 0]
        for said in (
            bytes(agent.recorded),
            bytes(workers[0].recorded),
            os.urandom(4096),
            bytes(HANDSHAKE_BYTES),
            bytes(agent.recorded[: GREETING_BYTES // 2]),
            bytes(agent.recorded[:GREETING_BYTES]),
            bytes(agent.recorded[: GREETING_BYTES + PROOF_BYTES // 2]),
        ):
            crowd(strangers, address, 3, said)
        crowd(strangers, address, 200)
        # Who has the key is let in all the same.
        run.agents.append(run.agent(run.relays[0]))
        run.await_output("-3 joined, with room for 2 workers")
        (here.folder / "go").touch()
        status, text = finish(run.sim)
    assert status == 0, text
    assert [finish(each)[0] for each in run.agents] == [0, 0, 0]
    assert here.summary()["warnings"] == []
    assert here.local().returncode == 0
    assert here.digest() == here.digest("local")
    assert here.nothing_lives(5)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [(), ("--set", "workflow.type=swarm")], ids=["own", "swarm"])
def test_nodes_come_from_addresses_of_their_own(cluster, linked, options):
    here = cluster()
    run = linked(here, *options, sources=("127.0.0.2", "127.0.0.3")).join()
    status, text = finish(run.sim)
    assert status == 0, text
    assert [finish(each)[0] for each in run.agents] == [0, 0]
    seen = {}
    for relay in run.relays:
        for role in ("agent", *WorkerSockets._fields):
            for link in relay.links(role):
                seen.setdefault(link.source, []).append(role)
    workers = [role for role in WorkerSockets._fields for _ in range(2)]
    assert seen == {each: ["agent", *workers] for each in ("127.0.0.2", "127.0.0.3")}
    assert here.summary()["warnings"] == []
    assert here.local(*options).returncode == 0
    assert here.digest() == here.digest("local")
    assert here.nothing_lives(5)


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.engine.close()


class HalfOpen:
    """A connection of a worker whose greeting is answered, and whose proof is yet to be sent."""

    def __init__(self, run, start, role):
        token = StartToken(start.keys[role])
        greeting = Greeting.new(role, token)
        host, port = run.engine.address.split(":")
        self._socket = socket.create_connection((host, int(port)), 10)
        self._socket.sendall(greeting.pack())
        answer = self._socket.recv(NONCE_BYTES, socket.MSG_WAITALL)
        self._proof = greeting.proof(b"dials", token, answer, "")

    def prove(self):
        """Send the proof, and return how many bytes are answered to it."""
        self._socket.sendall(self._proof)
        return len(self._socket.recv(PROOF_BYTES, socket.MSG_WAITALL))

    def close(self):
        self._socket.close()


def test_a_proof_that_comes_after_the_time_of_its_token_opens_nothing(run, monkeypatch):
    monkeypatch.setattr(join, "_START_SECONDS", 0.3)
    agent = FakeAgent(run)
    agent.join()
    thread, found = starting(run.engine)
    start = agent.next(StartWorker)
    late = [HalfOpen(run, start, role) for role in start.keys]
    thread.join(5)
    assert "it did not connect within 0.3" in str(found[0])
    assert [each.prove() for each in late] == [0, 0, 0, 0]
    assert agent.next(KillWorker).number == start.number
    agent.channel.send(WorkerEnded(start.number, -9))
    # Nothing of it is in the way of the next one.
    monkeypatch.setattr(join, "_START_SECONDS", 30.0)
    _, worker, ends = started(agent)
    assert worker.pid == 1
    worker.ends.close()
    for each in (*ends, *late, agent.channel):
        each.close()


def test_of_two_proofs_with_the_same_token_one_opens_a_connection(run):
    agent = FakeAgent(run)
    agent.join()
    thread, found = starting(run.engine)
    start = agent.next(StartWorker)
    pairs = [(HalfOpen(run, start, role), HalfOpen(run, start, role)) for role in start.keys]
    assert [first.prove() for first, _ in pairs] == [PROOF_BYTES] * 4
    assert [second.prove() for _, second in pairs] == [0] * 4
    agent.channel.send(WorkerEnded(start.number, reason="enough"))
    thread.join(5)
    assert "enough" in str(found[0])
    for each in (*sum(pairs, ()), agent.channel):
        each.close()
