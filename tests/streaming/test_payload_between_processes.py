"""Payloads between processes: the same value at either end, and a death in between."""

import multiprocessing
import signal
import socket
from collections import OrderedDict
from contextlib import closing
from dataclasses import replace

import payload_peers
import pytest
import torch
from harness import QUICK
from payloads import assert_same
from support import every_kind

from flstream.client.fl_model import FLModel
from flstream.streaming.api import add_payload, download_payload
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import Outcome
from flstream.transport.sockets import SocketChannel

# Not from a fork server: other tests start theirs in a way of its own.
CONTEXT = multiprocessing.get_context("spawn")


@pytest.fixture
def start():
    """Start a peer at the end of a pipe; return its reports and its process."""
    started = []

    def start(target, end, *args):
        receiving, sending = CONTEXT.Pipe()
        process = CONTEXT.Process(target=target, args=(end, sending, *args))
        process.start()
        end.close()
        sending.close()
        started.append((process, receiving))
        return receiving, process

    yield start
    for process, receiving in started:
        process.join(30)
        alive = process.is_alive()
        process.kill()
        process.join()
        receiving.close()
        assert not alive


@pytest.mark.parametrize("chunk_size", [0, 65536])
def test_another_process_has_the_value_and_needs_no_torch_for_arrays(harness, start, chunk_size):
    ref = add_payload(harness.service, payload_peers.arrays(), ["site-1"])
    how = replace(QUICK, chunk_size=chunk_size, request_size=1 << 20)
    reports, _ = start(payload_peers.fetch_and_report, harness.pipe_to("site-1"), ref.token, how)
    assert reports.recv() == ("ok", "")
    meta = payload_peers.arrays()["model"].meta
    assert reports.recv() == (True, meta, "float16", False)
    assert ref.wait(30).ok


def test_a_payload_of_another_process_arrives_and_its_quorum_is_one(start):
    ours, theirs = socket.socketpair()
    with closing(SocketChannel(ours, "peer")) as channel:
        reports, _ = start(payload_peers.offer_arrays, theirs, 1)
        status, value = download_payload(Receiver(channel, "peer"), reports.recv(), settings=QUICK)
        assert status.ok
        assert_same(value, payload_peers.arrays())
        assert reports.recv() == ("finished", "")


def test_a_receiver_killed_on_the_way_costs_a_quorum_nothing(harness, start):
    value = payload_peers.arrays()
    ref = add_payload(harness.service, value, ["victim", "survivor"], quorum=1)
    reports, process = start(
        payload_peers.die_on_the_way, harness.pipe_to("victim"), ref.token, QUICK
    )
    assert reports.recv() == "dying"
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert ref.outcome is None
    assert_same(download_payload(harness.receiver("survivor"), ref.token, settings=QUICK)[1], value)
    assert ref.wait(30) == Outcome("finished")


def test_tensors_go_to_another_process_and_come_back_changed(harness, start):
    floats = {name: value for name, value in every_kind().items() if name.startswith(("F", "BF"))}
    params = {name: value for name, value in floats.items() if not name.startswith("F8")}
    value = {"model": FLModel(params, metrics={"loss": 1.0}), "order": OrderedDict(b=1, a=(2,))}
    ours, theirs = socket.socketpair()
    with closing(SocketChannel(ours, "peer")) as channel, closing(theirs):
        ref = add_payload(harness.service, value, ["site-1"])
        reports, _ = start(payload_peers.send_back, harness.pipe_to("site-1"), theirs, ref.token)
        token = reports.recv()
        assert ref.wait(30).ok
        into = {"model": FLModel({"F32.matrix": torch.zeros(7, 5)})}
        status, back = download_payload(Receiver(channel, "peer"), token, settings=QUICK, into=into)
        assert status.ok
        assert reports.recv() == "finished"
    assert back["model"].params["F32.matrix"] is into["model"].params["F32.matrix"]
    due = {name: tensor * 2 for name, tensor in params.items()}
    assert_same(back, {**value, "model": FLModel(due, metrics={"loss": 1.0})})
