"""Swarm learning: a site folds, fed by its peers, to fedavg's bits; the server reads no tensor."""

import random
from unittest.mock import MagicMock

import pytest
from nightly_cases import first_and_nightly
from training_scripts import LARGE, noisy, of_kind, results, trained

from flstream.errors import UsageError
from flstream.telemetry.events import RoundFinished, Warned
from flstream.workflows.swarm import SwarmArgs, swarm

pytestmark = pytest.mark.usefixtures("processes")  # it kills and counts what passes between them
ROUNDS, SITES = 3, 4
HOW = [f"clients.count={SITES}", f"rounds={ROUNDS}", LARGE]
SHARED = ["clients.parallel=2", "streaming.tensor_download_chunk_size=4KiB"]

# The server's process counts what passes through its channels, and what it reads of files.
WATCHED = """
from flstream.model.checkpoint import FileSource
from flstream.streaming.direct import MemoryReader
from flstream.transport.channel import Channel
from flstream.workflows import WorkflowArgs
from flstream.workflows.swarm import SwarmArgs, swarm

moved = {"channels": 0, "files": 0}


def flow(run, args):
    count(Channel, "receive_some", "channels", int)
    count(Channel, "send_some", "channels", int)
    count(FileSource, "read", "files", lambda _: 1 << 20)
    count(MemoryReader, "read", "files", lambda _: 1 << 20)
    model = swarm(run, SwarmArgs())
    see(moved["channels"], moved["files"])
    return model


def count(owner, method, what, size):
    do = getattr(owner, method)

    def counted(*args, **kwargs):
        result = do(*args, **kwargs)
        moved[what] += size(result)
        return result

    setattr(owner, method, counted)
"""

# The worker that folds the second round dies once a part of it is done.
DIES_FOLDING = """
import os
import pathlib
import signal
import flstream.worker.peers as peers


def fold(task, own, report, folded=peers.fold):
    path = pathlib.Path(task.path)
    mark = path.parents[3] / "died"

    def die(folding):
        if path.name == "round-0002.safetensors" and folding.done and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        report(folding)

    return folded(task, own, die)


peers._REPORT_SECONDS = 0.0
peers.fold = fold
"""


# The worker that offers the model of the first round is out of reach for the peer that comes first.
HANGS_UP = """
import pathlib
import flstream.worker.peers as peers


def attach(self, channel, admission, attached=peers.Peers._attach):
    run = pathlib.Path(self.info.sites_folder).parent
    model, mark = run / "checkpoints" / "round-0001.safetensors", run / "hung-up"
    if admission.role == "receiver" and model.exists() and not mark.exists():
        mark.touch()
        channel.close()
    else:
        attached(self, channel, admission)


peers.Peers._attach = attach
"""


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory, jobs_in):
    """The results of fedavg."""
    return results(jobs_in(tmp_path_factory.mktemp("fedavg")).run(noisy(), *HOW))


@first_and_nightly("more", [[], SHARED])
def test_a_site_folds_to_the_bits_of_fedavg_and_the_server_reads_no_tensor(flows, fedavg, more):
    run = flows.finish(WATCHED, *HOW, *more)
    assert results(run) == fedavg
    (seen,) = flows.seen()
    channels, files = map(int, seen.split(", "))
    assert channels < run.summary.model.bytes / 4
    assert files == 0
    aggregators = [each.aggregator for each in of_kind(run, RoundFinished)]
    assert len(set(aggregators)) > 1
    # An update that lies in the worker that folds goes nowhere.
    sent = SITES if more == SHARED else SITES - 1
    size = run.summary.model.bytes
    assert run.summary.transfer.up.bytes == sent * ROUNDS * size
    # To be trained and to be scored.
    down = run.summary.transfer.down
    assert down.bytes + down.reused == 2 * SITES * ROUNDS * size


def test_a_site_that_is_lost_while_it_folds_trains_again_and_another_folds(jobs, fedavg):
    run = jobs.run(DIES_FOLDING + noisy(), *HOW, "workflow.type=swarm")
    assert results(run) == fedavg
    (warning,) = [each.message for each in of_kind(run, Warned)]
    lost, while_folding, _ = warning.partition(" was lost while it folded the updates of round 2")
    assert while_folding
    again = {site: [1, 2, 3] for site in run.summary.memory.clients} | {lost: [1, 2, 2, 3]}
    assert {site: trained(run, site) for site in again} == again
    assert of_kind(run, RoundFinished)[1].aggregator != lost


def test_a_model_that_its_worker_does_not_deliver_comes_from_another(jobs, fedavg):
    run = jobs.run(HANGS_UP + noisy(), *HOW, "workflow.type=swarm")
    assert (run.directory.path / "hung-up").exists()
    assert results(run) == fedavg


@pytest.mark.nightly
def test_a_site_that_acknowledges_no_task_in_time_is_lost(jobs):
    prelude = "def blocked(send):\n    return lambda x: (send(x), threading.Event().wait())\n"
    blocks = 'if (site, number) == ("site-2", 1):\n    flare.send = blocked(flare.send)\n'
    args = "args{evaluate_every=0, start_task_timeout=2 s}"
    how = ["clients.min_updates=1", f"workflow={{type=swarm, {args}}}"]
    run = jobs.run(prelude + noisy(blocks), *how).finished()
    (failure,) = run.summary.failures
    assert (failure.site, failure.round) == ("site-2", 2)
    assert "workflow.args.start_task_timeout" in failure.reason


def test_aggregators_are_sites_of_the_job(jobs):
    with pytest.raises(UsageError, match=r"workflow\.args\.aggregators.*site-9"):
        jobs.make(noisy(), "workflow={type=swarm, args.aggregators=[site-1, site-9]}")


@pytest.mark.parametrize(
    ("given", "drawn"), [(None, ["a", "c"]), (["c"], ["c"]), (["b", "c"], ["c"])]
)
def test_aggregators_are_drawn_among_those_that_are_still_asked(given, drawn):
    run, found = MagicMock(all_sites=("a", "b", "c"), sites=("a", "c"), random=random.Random), []
    run.rounds.return_value = range(40)
    run.fold.side_effect = lambda model, updates, at: found.append(at)
    swarm(run, SwarmArgs(aggregators=given))
    assert all(sorted(each) == drawn for each in found)
    assert {each[0] for each in found} == set(drawn)


def test_a_site_whose_update_cannot_be_written_says_so_at_once(flows):
    text = """
    (run_folder() / "updates").write_text("no folder")
    model = run.fold(model, run.train(model, run.sites), at=run.sites)
    """
    error = flows.fail(text, *HOW, *SHARED, "clients.round_timeout=60s")
    assert "its update cannot be written to " in error
    assert "updates/effect-0001/site-" in error
