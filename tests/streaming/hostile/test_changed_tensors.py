"""A sender that changes what it offers while it is fetched: what torch can tell is no success."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from nightly_cases import first_and_nightly

from flstream.model.memory import MemoryBody
from flstream.streaming.api import add_tensors, download_file, download_tensors
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import pipe

SCRIPT = Path(__file__).with_name("unlucky.py")
HALF = 4 << 20
# Half of the body is asked for, and the rest once that is here.
SETTINGS = StreamSettings(chunk_size=1 << 20, request_size=HALF, window=1, request_timeout=30)


@pytest.fixture
def change_half_way():
    """Downloads from a sender that changes the half that was not sent; returns how both ended."""
    ours, theirs = pipe("server", "site-1")
    processes = []

    def run(how, download):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(ours.fileno()), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[ours.fileno()],
        )
        processes.append(process)
        ours.close()
        token = bytes.fromhex(process.stdout.readline())

        def on_progress(done, _all):
            if done == HALF:
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "changed\n"

        status, got = download(Receiver(theirs, "server"), token, on_progress)
        return status, got, process.communicate(timeout=60)[0].strip()

    with closing(theirs):
        yield run
    for process in processes:
        process.kill()
        process.communicate()


@first_and_nightly("how", ["in place", "through a view", "file"])
def test_a_change_that_can_be_seen_ends_the_download_on_both_sides(change_half_way, how):
    def download(receiver, token, on_progress):
        return download_tensors(
            receiver, token, settings=SETTINGS, on_progress=on_progress, optional=True
        )

    status, got, outcome = change_half_way(how, download)
    assert status.code == "refused"
    assert "was changed" in status.reason
    assert "m.safetensors" in status.reason if how == "file" else "'w'" in status.reason
    assert not got
    assert outcome == "aborted"


def test_a_file_is_not_made_of_two_states_of_a_model(change_half_way, tmp_path):
    path = tmp_path / "m.safetensors"

    def download(receiver, token, on_progress):
        return download_file(
            receiver, token, path, settings=SETTINGS, on_progress=on_progress, optional=True
        )

    status, _, outcome = change_half_way("in place", download)
    assert (status.code, outcome) == ("refused", "aborted")
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_a_change_that_torch_does_not_count_is_not_seen(change_half_way):
    # As docs/protocol.md says; the test is there to have that stay true.
    def download(receiver, token, on_progress):
        return download_tensors(
            receiver, token, settings=SETTINGS, on_progress=on_progress, optional=True
        )

    status, got, outcome = change_half_way("through NumPy", download)
    assert (status.code, outcome) == ("ok", "finished")
    assert set(got["w"].tolist()) == {1, 2}


def test_a_change_after_the_last_byte_is_seen_before_it_counts_as_sent():
    weight = torch.ones(HALF, dtype=torch.uint8)
    ours, theirs = pipe("server", "site-1")
    with DownloadService() as service, closing(theirs):
        service.attach(ours, "site-1")
        ref = add_tensors(service, {"w": weight}, ["site-1"])

        def on_progress(done, nbytes):
            if done == nbytes:
                weight.add_(1)

        status, _ = download_tensors(
            Receiver(theirs, "server"),
            ref.token,
            settings=SETTINGS,
            on_progress=on_progress,
            optional=True,
        )
        assert status.code == "refused"
        assert "tensor 'w' was changed" in status.reason
        assert "tensor 'w' was changed" in ref.wait(30).reason


def test_the_first_tensor_of_a_range_that_was_changed_is_named():
    tensors = {name: torch.zeros(100) for name in "abc"}
    body = MemoryBody.of(tensors)
    tensors["b"].add_(1)
    assert "'b'" in body.changed(0, body.layout.nbytes)
    assert "'b'" in body.changed(796, 800)
    assert body.changed(0, 400) is None
    assert body.changed(800, 1200) is None
