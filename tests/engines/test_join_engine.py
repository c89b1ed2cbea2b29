"""The launcher's side of nodes that join, with agents that do not keep to the rules."""

import math
import socket
import threading
import time
from contextlib import suppress

import pytest

from flstream.engines import join, nodes
from flstream.engines.engine import WorkerSockets
from flstream.engines.join import JoinEngine, JoinSettings, NodeReports
from flstream.engines.node_messages import (
    AGENT,
    NONCE_FILE,
    Beat,
    KillWorker,
    NodeHello,
    NodeJob,
    NodeReady,
    NodeRefused,
    NodeUnfit,
    StartWorker,
    ToNode,
    WatchWorker,
    WorkerEnded,
    WorkerRuns,
)
from flstream.errors import (
    ChannelClosedError,
    SimulationError,
    StreamingError,
    WorkerLostError,
)
from flstream.job import make_job
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.worker_process import worker_info
from flstream.telemetry.events import NodeJoined, NodeLost
from flstream.telemetry.machine import this_machine
from flstream.telemetry.memory import MemorySampler, NodeMemory, ProcessMemory, Sample
from flstream.transport.authentication import NONCE_BYTES, PROOF_BYTES, Greeting, StartToken
from flstream.transport.channel import Signal
from flstream.transport.messages import MessageChannel
from flstream.transport.tcp import dial


class Run:
    """An engine, and what it reports."""

    def __init__(self, folder, *, wait=5.0, gpus=None):
        (folder / "model.py").write_text("def build():\n    return {}\n")
        (folder / "client.py").write_text("")
        values = {
            "name": "run",
            "rounds": 1,
            "clients": {"count": 2},
            "model": {"factory": "model:build"},
            "train": {"script": "client.py"},
        }
        job = make_job(values, folder, "a test")
        run = RunDirectory.create("run", folder / "run")
        self.events = []
        self.sampler = MemorySampler()
        self.key = StartToken.new()
        self.nonce = run.path / NONCE_FILE
        self.output = []
        self._changed = threading.Condition()
        calls = (self.events.append, self.sampler.take, self.sampler.forget, self.output.append)
        self.engine = JoinEngine(
            JoinSettings("127.0.0.1:0", self.key, 1, wait),
            NodeJob(str(run.path), str(folder), variables={}, threads=1, gpus=gpus),
            lambda name: worker_info(job, run, name),
            NodeReports(*map(self._noted, calls)),
        )

    def _noted(self, call):
        def noted(*args):
            call(*args)
            with self._changed:
                self._changed.notify_all()

        return noted

    def until(self, is_so):
        """Wait until something is so, upon what the engine reports."""
        with self._changed:
            assert self._changed.wait_for(is_so, 10)

    def lost(self):
        return [each.reason for each in self.events if isinstance(each, NodeLost)]

    def joined(self):
        return [each.node for each in self.events if isinstance(each, NodeJoined)]


class FakeAgent:
    """An agent whose messages a test sends."""

    def __init__(self, run, **changed):
        self.run = run
        self.channel = MessageChannel(dial(run.engine.address, run.key, "x", AGENT), "x", ToNode)
        hello = {
            "host": "machine",
            "cpus": 2,
            "gpus": 0,
            "versions": this_machine().versions,
            "processor": this_machine().processor,
            "time": time.time(),
        }
        self.channel.send(NodeHello(**{**hello, **changed}))

    def next(self, kind):
        while not isinstance(message := self.channel.receive(5.0), kind):
            assert isinstance(message, Beat), message
        return message

    def join(self, *, sees_run=True):
        before = len(self.run.joined())
        job = self.next(NodeJob)
        self.channel.send(NodeReady(sees_run))
        self.run.until(lambda: len(self.run.joined()) > before)
        return job

    def dial(self, start, role):
        return dial(self.run.engine.address, StartToken(start.keys[role]), "x", role)


def close_all(*ends):
    for each in ends:
        each.close()


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.engine.close()


def starting(engine, name="site-1"):
    """Start a worker in a thread, and return what comes of it."""
    found = []

    def start():
        try:
            found.append(engine.start(name))
        except WorkerLostError as error:
            found.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    return thread, found


def started(agent, name="site-1"):
    """Have an agent start a worker, and return the message, the worker and the agent's ends."""
    thread, found = starting(agent.run.engine, name)
    start = agent.next(StartWorker)
    ends = [agent.dial(start, role) for role in start.keys]
    agent.channel.send(WorkerRuns(start.number, 1))
    thread.join(10)
    return start, found[0], ends


def test_a_worker_is_started_connected_and_ended(run):
    agent = FakeAgent(run)
    job = agent.join()
    assert job.node == "machine"
    assert run.nonce.read_text() == job.nonce
    thread, found = starting(run.engine)
    start = agent.next(StartWorker)
    assert start.info.name == "site-1"
    assert start.keys.keys() == set(WorkerSockets._fields)
    theirs = {role: agent.dial(start, role).detach() for role in start.keys}
    agent.channel.send(WorkerRuns(start.number, 4242))
    thread.join(10)
    (worker,) = found
    assert (worker.pid, worker.number) == (4242, start.number)
    for role, end in worker.ends._asdict().items():
        theirs[role].setblocking(True)
        theirs[role].sendall(role.encode())
        assert end.recv(99) == role.encode()
    run.engine.watch("site-2", 5, [6])  # of which there is none
    run.engine.watch("site-1", 7, [8, 9])
    assert agent.next(WatchWorker) == WatchWorker("site-1", 7, [8, 9])
    # Each token was of use once.
    for role in start.keys:
        with pytest.raises(ChannelClosedError):
            agent.dial(start, role)
    run.engine.kill(worker.number)
    assert agent.next(KillWorker).number == worker.number
    agent.channel.send(WorkerEnded(worker.number, -9))
    run.engine.await_end(worker.number, 5.0)
    # The server sees the end of a worker's sockets, though the other side's are open.
    assert worker.ends.control.recv(1) == b""
    assert run.engine.causes == {"site-1": "site-1 was killed by SIGKILL on machine"}
    worker.ends.close()
    for end in theirs.values():
        end.close()
    agent.channel.close()


def test_workers_of_others_are_not_a_nodes_to_end(run):
    first = FakeAgent(run)
    first.join()
    start, worker, ends = started(first)
    second = FakeAgent(run)
    assert second.join().node == "machine-2"
    for number in (start.number, 10**18):
        second.channel.send(WorkerEnded(number, -9), WorkerRuns(number, 1))
    second.channel.send(Beat(time.time(), NodeMemory(peak_total_pss=5)))
    run.until(lambda: run.sampler.nodes.get("machine-2") == 5)
    assert run.engine.causes == {}
    worker.ends.control.setblocking(False)
    with pytest.raises(BlockingIOError):
        worker.ends.control.recv(1)
    worker.ends.close()
    close_all(*ends, first.channel, second.channel)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"versions": {"flstream": "9"}}, "machine has flstream 9, and the run"),
        ({"versions": {**this_machine().versions, "torch": "1.0"}}, "has torch 1.0"),
        ({"cpus": -5}, "room for -5 workers"),
        ({}, "the disk is full"),
    ],
)
def test_a_node_that_does_not_fit_is_told_why(run, changed, words):
    agent = FakeAgent(run, **changed)
    if changed:
        assert words in agent.next(NodeRefused).reason
    else:
        agent.next(NodeJob)
        agent.channel.send(NodeUnfit(words))
    run.until(run.lost)
    assert words in run.lost()[0]
    assert run.joined() == []
    agent.channel.close()


@pytest.mark.parametrize("says", [b"", b"\xff" * 64])
def test_a_node_that_is_silent_or_says_what_is_no_message_is_given_up(run, monkeypatch, says):
    if not says:
        monkeypatch.setattr(nodes, "SILENT_SECONDS", 0.4)
    agent = FakeAgent(run)
    agent.join()
    sock = agent.channel._channel.detach()
    sock.setblocking(True)
    sock.sendall(says)
    run.until(run.lost)
    assert says or run.lost() == ["it gave no sign of life for 0.4 s"]
    sock.close()


def test_what_an_agent_makes_up_changes_no_more_than_figures(run):
    agent = FakeAgent(run, time=math.nan, host="\x1b[2J" + "x" * 900)
    name = agent.join().node
    assert name.startswith("-2Jx")
    assert len(name) == 64
    lies = NodeMemory(
        [Sample(math.nan, "server", -5), Sample(1e300, "x" * 9999, 2**62)],
        {"server": ProcessMemory(1, 2**62, -1)},
        2**62,
    )
    own = f"{name}/{AGENT}"
    agent.channel.send(Beat(math.inf, lies), Beat(-math.inf, lies))
    truth = NodeMemory([Sample(math.nan, own, 3)], {own: ProcessMemory(1, 2, 3)}, 7)
    agent.channel.send(Beat(time.time(), truth))
    run.until(lambda: run.sampler.nodes.get(name) == 7)
    assert run.sampler.peaks() == {own: ProcessMemory(0, 2, 3)}
    assert run.sampler.current_rss() == {}
    agent.channel.close()
    run.until(run.lost)
    run.engine._settings = run.engine._settings._replace(wait=0.1)
    with pytest.raises(WorkerLostError, match="no node is left"):
        run.engine.start("site-1")


def test_nobody_joins_in_time(tmp_path):
    run = Run(tmp_path, wait=0.2)
    stop = Signal()
    try:
        with pytest.raises(SimulationError, match=r"0 of 1 nodes joined within 0\.2 s"):
            run.engine.await_nodes(stop)
    finally:
        run.engine.close()
        stop.close()
    assert not run.nonce.exists()
    with pytest.raises(StreamingError):
        dial(run.engine.address, run.key, "x", AGENT)
    with pytest.raises(WorkerLostError, match="the run is over"):
        run.engine.start("site-1")


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
    thread.join(10)
    assert "site-1 could not be started on machine: it did not connect within 0.3" in str(found[0])
    assert [each.prove() for each in late] == [0, 0, 0, 0]
    assert agent.next(KillWorker).number == start.number
    with pytest.raises(ChannelClosedError):
        agent.dial(start, "down")
    agent.channel.send(WorkerEnded(start.number, -9))
    # Nothing of it is in the way of the next one.
    monkeypatch.setattr(join, "_START_SECONDS", 30.0)
    _, worker, ends = started(agent)
    assert worker.pid == 1
    close_all(worker.ends, *ends, *late, agent.channel)


def test_of_two_proofs_with_the_same_token_one_opens_a_connection(run):
    agent = FakeAgent(run)
    agent.join()
    thread, found = starting(run.engine)
    start = agent.next(StartWorker)
    pairs = [(HalfOpen(run, start, role), HalfOpen(run, start, role)) for role in start.keys]
    assert [first.prove() for first, _ in pairs] == [PROOF_BYTES] * 4
    assert [second.prove() for _, second in pairs] == [0] * 4
    agent.channel.send(WorkerEnded(start.number, reason="enough"))
    thread.join(10)
    assert "enough" in str(found[0])
    close_all(*sum(pairs, ()), agent.channel)


# Where a node says again what it has said, and strangers say what they like.
STRANGERS = (b"", b"GET / HTTP/1.0\r\n\r\n", b"FLSA\1", b"FLSA" + bytes(92), bytes(4096))


def test_strangers_change_nothing_and_who_has_the_key_is_let_in(run):
    host, port = run.engine.address.split(":")
    socks = [socket.create_connection((host, int(port)), 10) for _ in STRANGERS * 40]
    for said, sock in zip(STRANGERS * 40, socks, strict=True):
        with suppress(ConnectionError):  # it was closed already
            sock.sendall(said)
    with pytest.raises(StreamingError):
        dial(run.engine.address, StartToken.new(), "x", AGENT)
    agent = FakeAgent(run)
    agent.join()
    assert (run.joined(), run.lost()) == (["machine"], [])
    close_all(*socks, agent.channel)
