"""What the journal says of each body that a site received or sent is what has happened."""

import json
import os
import re
import signal

import pytest
from nightly_cases import first_and_nightly
from training_scripts import LARGE, QUIET, noisy

from flstream.inspection.examine import Request, examine
from flstream.inspection.site_bodies import SiteRequest, examine_site
from flstream.runs.body_records import RECORDED, read_bodies
from flstream.runs.journal import read_history
from flstream.telemetry.events import ProcessReady, SiteLog, SiteUpdate, Transfer

MODEL = """
import torch


def build():
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(300, 300, generator=generator),
        "norm": torch.randn(300, generator=generator),
        "steps": torch.tensor(0),
    }
"""
# Bytes of which no compressor makes fewer.
NOISE = """
import torch


def build():
    generator = torch.Generator().manual_seed(1)
    return {"noise": torch.randint(0, 256, (200_000,), generator=generator, dtype=torch.uint8)}
"""
TRAIN = """
import os
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={{"score": 1.0}}))
        continue
    params = {{name: each.clone() for name, each in model.params.items()}}
    if "w" in params:
        params["w"] *= 1 + 1e-6 * torch.randn(params["w"].shape)
    {body}
    flare.send(flare.FLModel(params=params, metrics={{"loss": 0.5}}, meta={{"partial": {partial}}}))
"""
SMALL_CHANGES = TRAIN.format(body="", partial=False)
EXACT = ("streaming.codecs.up=[delta,shuffle,zstd]", "streaming.codecs.down=[delta,shuffle,zstd]")
INT8 = ("streaming.codecs.up=[int8]", "streaming.codecs.require_lossless=[norm]")
COUNTS = ("bytes", "reused")
EVALUATED = "workflow.args.evaluate_every=1"


def finished(run):
    assert run.summary.status == "finished", run.summary.error
    return run


def bodies(run, site=None):
    events = run.directory.events
    return list(read_bodies(events, read_history(events, note_lines_of=RECORDED), site))


def forms(found, direction, task="train"):
    return {each.tags for each in found if (each.direction, each.task) == (direction, task)}


def moved(found, direction):
    ours = [each for each in found if each.direction == direction]
    # What came for several sites at once moved once.
    moved, reused = ([getattr(each, name) / each.sites for each in ours] for name in COUNTS)
    return sum(moved), sum(reused)


@first_and_nightly(
    "how",
    [
        pytest.param((), id="plain"),
        pytest.param(EXACT, id="exact codecs"),
        pytest.param(INT8, id="int8"),
        pytest.param(("streaming.reuse=off",), id="without reuse"),
        pytest.param(("clients.count=4", "clients.parallel=2"), id="shared workers"),
        pytest.param(("clients.count=4", "clients.parallel=1", *EXACT), id="shared, exact codecs"),
        pytest.param(("streaming.mode=push",), id="push"),
        pytest.param(("streaming.mode=native",), id="native"),
        pytest.param(("workflow.type=swarm",), id="swarm"),
        pytest.param(("workflow.type=cyclic",), id="cyclic"),
    ],
    brief=2,
)
def test_the_records_add_up_to_what_the_run_has_cost(jobs, how):
    run = finished(jobs.run(SMALL_CHANGES, EVALUATED, *how, model=MODEL))
    found, transfer = bodies(run), run.summary.transfer
    for direction, whole in (("received", transfer.down), ("sent", transfer.up)):
        assert moved(found, direction) == (whole.bytes, whole.reused)
    assert {each.site for each in found} == {each.site for each in found if each.round == 2}


def test_a_plain_model_is_pulled_as_it_is(jobs):
    run = finished(jobs.run(SMALL_CHANGES, QUIET, "streaming.reuse=off", model=MODEL))
    found, size = bodies(run), run.summary.model.bytes
    assert len(found) == 2 * 2 * 2
    assert forms(found, "received") == {("pulled",)}
    assert forms(found, "sent") == {("pulled", "FULL")}
    assert all((each.size, each.bytes, each.not_sent) == (size, size, 0) for each in found)
    digests = [model.digest for model in read_history(run.directory.events).models]
    for each in found:
        assert each.model == digests[each.round - 1]
        assert each.made == (each.round - 1 if each.direction == "received" else each.round)
        ends = ("server", each.site) if each.direction == "received" else (each.site, "server")
        assert (each.origin, each.receiver) == ends


@pytest.mark.parametrize(
    ("mode", "down", "up"),
    [
        ("push", ("pushed",), ("pushed", "FULL")),
        ("native", ("native",), ("native", "FULL")),
        ("map", ("mapped",), ("pulled", "FULL", "reused")),
    ],
)
def test_the_way_is_the_one_that_was_taken(jobs, mode, down, up):
    script = SMALL_CHANGES.replace('"w"', '"none"')  # the update is the model
    how = (QUIET, "clients.count=1", f"streaming.mode={mode}")
    found = bodies(finished(jobs.run(script, *how, model=MODEL)))
    assert forms(found, "received") == {down}
    assert forms(found, "sent") == {up}
    if mode == "map":
        assert all(each.bytes == 0 and each.not_sent == each.size for each in found)


def test_a_codec_that_makes_nothing_smaller_is_not_named(jobs):
    zstd = ("streaming.codecs.up=[zstd]", "streaming.codecs.down=[zstd]", "streaming.reuse=off")
    found = bodies(finished(jobs.run(SMALL_CHANGES, QUIET, *zstd, model=NOISE)))
    assert forms(found, "received") == {("pulled",)}
    assert forms(found, "sent") == {("pulled", "FULL")}
    assert all((each.encoded, each.not_sent) == (0, 0) for each in found)
    zeros = NOISE.replace("randint(0, 256, (200_000,), generator=generator", "zeros((200_000,)")
    found = bodies(finished(jobs.run(SMALL_CHANGES, QUIET, *zstd, model=zeros)))
    assert forms(found, "received") == {("pulled", "zstd")}
    assert forms(found, "sent") == {("pulled", "FULL", "zstd")}
    assert all(each.encoded == each.size > 10 * each.bytes for each in found)
    assert all(each.with_base == 0 for each in found)


def test_a_model_is_a_delta_where_the_site_has_one_to_compare_with(jobs):
    """One site loses its second model with its process, and gets the third one whole."""
    died = jobs.folder / "died"
    body = (
        "if flare.get_site_name() == 'site-1' and model.current_round == 1 "
        f"and not os.path.exists({str(died)!r}):\n"
        f"        open({str(died)!r}, 'w').close()\n"
        "        os._exit(1)"
    )
    script = TRAIN.format(body=body, partial=False)
    how = ("rounds=3", "clients.min_updates=1", QUIET, "streaming.reuse=off", *EXACT)
    run = finished(jobs.run(script, *how, model=MODEL))
    assert died.exists()
    whole, delta = ("pulled", "shuffle", "zstd"), ("pulled", "delta", "shuffle", "zstd")
    for site, due in (("site-1", [whole, delta, whole]), ("site-2", [whole, delta, delta])):
        received = [each for each in bodies(run, site) if each.direction == "received"]
        assert [each.tags for each in received] == due
        for each in received:
            assert each.encoded == each.size > each.bytes
            assert each.with_base == (each.size if "delta" in each.tags else 0)
    assert forms(bodies(run), "sent") == {("pulled", "FULL", "delta", "shuffle", "zstd")}


def test_tensors_that_a_codec_encodes_have_other_keys_than_those_that_pass(jobs):
    run = finished(jobs.run(SMALL_CHANGES, EVALUATED, *INT8, model=MODEL))
    found = examine_site(SiteRequest(run.directory.path, "site-2", 2))
    keys = {each.body.direction: each.keys for each in found.keyed if each.body.task == "train"}
    for key in keys["received"]:
        assert key[1:] == ("server", 1, False, ("model", "pulled"))
    sent = {key.tensor: key for key in keys["sent"]}
    form = ("trained", "pulled", "FULL")
    assert sent["w"][1:] == ("site-2", 2, False, (*form, "int8"))
    assert sent["norm"].tags == sent["steps"].tags == (*form, "lossless")
    (update,) = [each for each in found.bodies if each.direction == "sent"]
    assert update.not_sent == update.size - update.bytes > 0.7 * update.size
    assert {(key.tensor, key.report, key.tags) for key in found.metrics} == {
        ("loss", True, ("metric", "train")),
        ("score", True, ("metric", "evaluate")),
    }


@pytest.mark.nightly
def test_models_that_lose_bits_on_their_way_are_known_by_it(jobs):
    how = ("streaming.codecs.down=[int4, zstd]", "streaming.codecs.require_lossless=[norm]")
    run = finished(jobs.run(SMALL_CHANGES, QUIET, "streaming.reuse=off", *how, model=MODEL))
    found = examine_site(SiteRequest(run.directory.path, "site-1", 1))
    (received,) = [each for each in found.keyed if each.body.direction == "received"]
    tags = {key.tensor: key.tags for key in received.keys}
    assert tags["w"][:3] == ("model", "pulled", "int4")
    assert tags["norm"][:3] == tags["steps"][:3] == ("model", "pulled", "lossless")
    assert received.body.not_sent > 0.7 * received.body.size
    for mode, expected in (("map", "mapped"), ("push", "pushed")):
        how = (f"streaming.mode={mode}", "streaming.codecs.down=[int4]")
        again = finished(jobs.run(SMALL_CHANGES, QUIET, *how, model=MODEL))
        (tags,) = forms(bodies(again), "received")
        assert tags == ((expected,) if mode == "map" else (expected, "int4"))


def test_a_codec_that_may_change_no_tensor_is_not_named(jobs):
    how = ("streaming.codecs.up=[int8]", "streaming.codecs.require_lossless=[w,norm]")
    found = bodies(finished(jobs.run(SMALL_CHANGES, QUIET, *how, model=MODEL)))
    assert all("int8" not in tags for tags in forms(found, "sent"))


@first_and_nightly("how", [(), INT8], ids=["plain", "int8"])
def test_an_update_of_some_tensors_has_keys_of_these_alone(jobs, how):
    script = TRAIN.format(body="del params['norm']", partial=True)
    run = finished(jobs.run(script, QUIET, *how, model=MODEL))
    found = examine_site(SiteRequest(run.directory.path, "site-1", 1))
    model, update = found.keyed
    assert {key.tensor for key in model.keys} == {"w", "norm", "steps"}
    assert {key.tensor for key in update.keys} == {"w", "steps"}
    assert update.body.size == run.summary.model.bytes - 4 * 300
    assert "partial" in update.body.tags


def test_a_model_that_was_evaluated_and_is_then_trained_is_reused(jobs):
    model = MODEL.replace("300, 300", "100, 100")  # short: sites remember it
    run = finished(jobs.run(SMALL_CHANGES, EVALUATED, model=model))
    second = [each for each in bodies(run) if each.round == 2 and each.task == "train"]
    received = [each for each in second if each.direction == "received"]
    assert [each.tags for each in received] == [("pulled", "reused")] * 2
    assert all((each.bytes, each.reused) == (0, each.size) for each in received)


def test_the_document_has_every_record_and_what_was_not_sent(jobs):
    how = (EVALUATED, *EXACT)
    run = finished(jobs.run(SMALL_CHANGES, *how, model=MODEL))
    listed = examine(Request(run.directory.path)).document()["run"]["bodies"]
    assert [each["tags"] for each in listed] == [each.tags for each in bodies(run)]
    assert all(each["not_sent"] == each["size"] - each["bytes"] for each in listed)
    one = examine_site(SiteRequest(run.directory.path, "site-1", 1, ("no*",))).document()
    assert [body["direction"] for body in one["bodies"]] == ["received", "sent", "received"]
    assert [[key["tensor"] for key in body["keys"]] for body in one["bodies"]] == [["norm"]] * 3
    json.dumps([listed, one], allow_nan=False)


def test_a_site_that_folds_is_named_and_has_its_own_update_there(jobs):
    run = finished(jobs.run(SMALL_CHANGES, "workflow.type=swarm", QUIET, model=MODEL))
    updates = [each for each in bodies(run) if each.direction == "sent"]
    assert len(updates) == 4
    for each in updates:
        assert each.receiver in ("site-1", "site-2")
        assert ("local" in each.tags) == (each.receiver == each.site)
        assert each.bytes == (0 if each.receiver == each.site else each.size)


def test_a_model_for_several_sites_comes_once(jobs):
    how = ("clients.count=4", "clients.parallel=1", QUIET)
    found = bodies(finished(jobs.run(SMALL_CHANGES, *how, model=MODEL)))
    received = [each for each in found if each.direction == "received"]
    assert len(received) == 2 * 4
    assert {each.sites for each in received} == {4}
    lines = [each for each in found if each.direction == "sent" and each.round == 1]
    assert {each.site for each in lines} == {f"site-{number}" for number in range(1, 5)}


class ServerKiller:
    """Kills the server once a site logs something in round 2."""

    def __init__(self):
        self.pid = 0

    def __call__(self, event, sampler):
        if isinstance(event, ProcessReady) and event.process == "server":
            self.pid = event.pid
        elif isinstance(event, SiteLog) and event.round == 2 and self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0


# The first time that it has trained for round 2, a site says so and waits to be killed.
WAITS = """
mark = f"{folder}/waited"
if (site, number) == ("site-%d", 2) and not os.path.exists(mark):
    open(mark, "w").close()
    flare.log("waits", 1.0)
    threading.Event().wait()
"""


# One worker: of six updates, four are in a sum and one waits when the last site trains.
@pytest.mark.nightly
@first_and_nightly("last", [3, 6], ids=["in files", "in a sum"])
def test_after_a_resume_each_body_is_there_once(jobs, last):
    how = ("clients.count=6", "rounds=3", LARGE, "clients.parallel=1", QUIET)
    script = noisy(WAITS % last)
    cut_off = jobs.run(script, *how, listener=ServerKiller())
    assert cut_off.summary.status == "failed"
    before = [(each.site, each.round, each.direction) for each in bodies(cut_off)]
    resumed = finished(jobs.go_on(cut_off, script, *how))
    found = [(each.site, each.round, each.direction) for each in bodies(resumed)]
    sites = [f"site-{number}" for number in range(1, 7)]
    assert sorted(found) == sorted(
        (site, number, direction)
        for site in sites
        for number in (1, 2, 3)
        for direction in ("received", "sent")
    )
    # What came before the kill is there, but for the site that had to begin anew.
    assert {each for each in before if each[1] == 1} <= set(found)
    assert ("site-1", 2, "received") in before


def test_a_journal_of_an_earlier_version_still_loads_and_has_no_records(jobs):
    run = finished(jobs.run(SMALL_CHANGES, QUIET, model=MODEL))
    path, old = run.directory.events, []
    for line in path.read_bytes().splitlines():
        if b'"kind":"model_received"' in line or b'"kind":"updates_received"' in line:
            continue
        line = line.replace(b',"encoded":0,"with_base":0', b"")
        old.append(re.sub(rb',"check":"\w+"', b"", line) + b"\n")
    path.write_bytes(b"".join(old))
    assert b"with_base" not in path.read_bytes()
    history = read_history(path, note_lines_of=(*RECORDED, SiteUpdate))
    assert len(history.rounds) == 2
    assert history.totals.up == run.summary.transfer.up
    assert isinstance(history.totals.up, Transfer)
    assert bodies(run) == []
