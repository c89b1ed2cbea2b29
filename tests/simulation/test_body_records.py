"""What the journal says of each body that a site received or sent is what has happened."""

import json

import pytest
from nightly_cases import first_and_nightly
from training_scripts import QUIET, plain

from flstream.inspection.examine import Request, examine
from flstream.inspection.site_bodies import SiteRequest, examine_site
from flstream.runs.body_records import RECORDED, read_bodies
from flstream.runs.journal import read_history

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
# Bytes of which no compressor makes fewer, and bytes of which it does.
NOISE = """
import torch


def build():
    generator = torch.Generator().manual_seed(1)
    return {"noise": torch.randint(0, 256, (200_000,), generator=generator, dtype=torch.uint8)}
"""
ZEROS = NOISE.replace("randint(0, 256, (200_000,), generator=generator", "zeros((200_000,)")
CHANGES = """
    params = {name: each.clone() for name, each in params.items()}
    params["w"] *= 1 + 1e-6 * torch.randn(params["w"].shape)
    metrics = {"loss": 0.5}
    """
SMALL_CHANGES = plain(CHANGES)
EXACT = ("streaming.codecs.up=[delta,shuffle,zstd]", "streaming.codecs.down=[delta,shuffle,zstd]")
INT8 = ("streaming.codecs.up=[int8]", "streaming.codecs.require_lossless=[norm]")
ZSTD = ("streaming.codecs.up=[zstd]", "streaming.codecs.down=[zstd]", "streaming.reuse=off")
COUNTS = ("bytes", "reused")
FULL = ("pulled", "FULL")


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


def assert_adds_up(run):
    """The records are of every site, and add up to what the run has cost."""
    found, transfer = bodies(run), run.summary.transfer
    for direction, whole in (("received", transfer.down), ("sent", transfer.up)):
        assert moved(found, direction) == (whole.bytes, whole.reused)
    assert {each.site for each in found} == {each.site for each in found if each.round == 2}
    return found


def test_a_plain_model_is_pulled_as_it_is(jobs):
    run = finished(jobs.run(SMALL_CHANGES, QUIET, "streaming.reuse=off", model=MODEL))
    found, size = assert_adds_up(run), run.summary.model.bytes
    assert len(found) == 2 * 2 * 2
    assert forms(found, "received") == {("pulled",)}
    assert forms(found, "sent") == {FULL}
    assert all((each.size, each.bytes, each.not_sent) == (size, size, 0) for each in found)
    digests = [model.digest for model in read_history(run.directory.events).models]
    for each in found:
        assert each.model == digests[each.round - 1]
        assert each.made == (each.round - 1 if each.direction == "received" else each.round)
        ends = ("server", each.site) if each.direction == "received" else (each.site, "server")
        assert (each.origin, each.receiver) == ends


# Of models that change nothing, or nothing that can be seen.
@first_and_nightly(
    ("how", "model", "down", "up"),
    [
        (["streaming.mode=map"], MODEL, ("mapped",), (*FULL, "reused")),
        (ZSTD, ZEROS, ("pulled", "zstd"), (*FULL, "zstd")),
        (ZSTD, NOISE, ("pulled",), FULL),
        (["streaming.mode=native"], MODEL, ("native",), ("native", "FULL")),
        (["streaming.codecs.down=[int4]"], MODEL, ("pulled", "int4"), None),
        (["streaming.codecs.down=[int4]", "streaming.mode=map"], MODEL, ("mapped",), None),
        (["streaming.codecs.up=[int8]", "streaming.codecs.require_lossless=[w,norm]"], MODEL,
         ("pulled",), None),
    ],
    brief=2,
)  # fmt: skip
@pytest.mark.usefixtures("processes")
def test_the_way_and_the_codecs_are_those_that_were_taken(jobs, how, model, down, up):
    # The update is the model.
    found = bodies(finished(jobs.run(plain(), QUIET, "clients.count=1", *how, model=model)))
    assert down in forms(found, "received")
    assert up is None or forms(found, "sent") == {up}
    assert all("int8" not in tags for tags in forms(found, "sent"))
    for each in found:
        if "map" in how[-1]:
            assert (each.bytes, each.not_sent) == (0, each.size)
        if model is ZEROS:
            assert each.encoded == each.size > 10 * each.bytes
            assert each.with_base == 0
        if model is NOISE:
            assert (each.encoded, each.not_sent) == (0, 0)


def test_a_model_is_a_delta_where_the_site_has_one_to_compare_with(jobs, processes):
    """One site loses its second model with its process, and gets the third one whole."""
    died = jobs.folder / "died"
    dies = f"""
    if (site, model.current_round) == ("site-1", 1) and not os.path.exists({str(died)!r}):
        open({str(died)!r}, "w").close()
        os._exit(1)
    """
    script = plain(CHANGES + dies)
    how = ("rounds=3", "clients.min_updates=1", QUIET, "streaming.reuse=off")
    run = finished(jobs.run(script, *how, *EXACT, model=MODEL))
    assert died.exists()
    whole, delta = ("pulled", "shuffle", "zstd"), ("pulled", "delta", "shuffle", "zstd")
    for site, due in (("site-1", [whole, delta, whole]), ("site-2", [whole, delta, delta])):
        received = [each for each in bodies(run, site) if each.direction == "received"]
        assert [each.tags for each in received] == due
        for each in received:
            assert each.encoded == each.size > each.bytes
            assert each.with_base == (each.size if "delta" in each.tags else 0)
    assert forms(bodies(run), "sent") == {(*FULL, "delta", "shuffle", "zstd")}
    # It has come to the same bits: what it had to compare with decides none.
    died.unlink()
    assert jobs.run(script, *how, model=MODEL).summary.model.digest == run.summary.model.digest


def test_tensors_that_a_codec_encodes_have_other_keys_than_those_that_pass(jobs):
    run = finished(jobs.run(SMALL_CHANGES, *INT8, model=MODEL))
    assert_adds_up(run)
    found = examine_site(SiteRequest(run.directory.path, "site-2", 2))
    keys = {each.body.direction: each.keys for each in found.keyed if each.body.task == "train"}
    for key in keys["received"]:
        assert key[1:] == ("server", 1, False, ("model", "pulled"))
    sent = {key.tensor: key for key in keys["sent"]}
    form = ("trained", *FULL)
    assert sent["w"][1:] == ("site-2", 2, False, (*form, "int8"))
    assert sent["norm"].tags == sent["steps"].tags == (*form, "lossless")
    (update,) = [each for each in found.bodies if each.direction == "sent"]
    assert update.not_sent == update.size - update.bytes > 0.7 * update.size
    assert {(key.tensor, key.report, key.tags) for key in found.metrics} == {
        ("loss", True, ("metric", "train")),
        ("score", True, ("metric", "evaluate")),
    }


def test_models_that_lose_bits_and_updates_of_some_tensors_are_known_by_it(jobs):
    script = plain(CHANGES + "del params['norm']\n    meta['partial'] = True\n")
    how = ("streaming.codecs.down=[int4, zstd]", "streaming.codecs.require_lossless=[norm]")
    run = finished(jobs.run(script, QUIET, "streaming.reuse=off", *how, model=MODEL))
    found = examine_site(SiteRequest(run.directory.path, "site-1", 1))
    received, update = found.keyed
    tags = {key.tensor: key.tags for key in received.keys}
    assert tags.keys() == {"w", "norm", "steps"}
    assert tags["w"][:3] == ("model", "pulled", "int4")
    assert tags["norm"][:3] == tags["steps"][:3] == ("model", "pulled", "lossless")
    assert received.body.not_sent > 0.7 * received.body.size
    assert {key.tensor for key in update.keys} == {"w", "steps"}
    assert update.body.size == run.summary.model.bytes - 4 * 300
    assert "partial" in update.body.tags


def test_a_model_that_was_evaluated_and_is_then_trained_is_reused_and_listed(jobs):
    model = MODEL.replace("300, 300", "100, 100")  # short: sites remember it
    run = finished(jobs.run(SMALL_CHANGES, model=model))
    found = assert_adds_up(run)
    second = [each for each in found if each.round == 2 and each.task == "train"]
    received = [each for each in second if each.direction == "received"]
    assert [each.tags for each in received] == [("pulled", "reused")] * 2
    assert all((each.bytes, each.reused) == (0, each.size) for each in received)
    # The document has every record and what was not sent.
    listed = examine(Request(run.directory.path)).document()["run"]["bodies"]
    assert [each["tags"] for each in listed] == [each.tags for each in found]
    assert all(each["not_sent"] == each["size"] - each["bytes"] for each in listed)
    one = examine_site(SiteRequest(run.directory.path, "site-1", 1, ("no*",))).document()
    assert [body["direction"] for body in one["bodies"]] == ["received", "sent", "received"]
    assert [[key["tensor"] for key in body["keys"]] for body in one["bodies"]] == [["norm"]] * 3
    json.dumps([listed, one], allow_nan=False)


@pytest.mark.usefixtures("processes")
def test_a_site_that_folds_is_named_and_has_its_own_update_there(jobs):
    run = finished(jobs.run(SMALL_CHANGES, "workflow.type=swarm", QUIET, model=MODEL))
    updates = [each for each in assert_adds_up(run) if each.direction == "sent"]
    assert len(updates) == 4
    for each in updates:
        assert each.receiver in ("site-1", "site-2")
        assert ("local" in each.tags) == (each.receiver == each.site)
        assert each.bytes == (0 if each.receiver == each.site else each.size)


@pytest.mark.usefixtures("processes")
def test_a_model_for_several_sites_comes_once(jobs):
    how = ("clients.count=4", "clients.parallel=1", QUIET)
    found = assert_adds_up(finished(jobs.run(SMALL_CHANGES, *how, *EXACT, model=MODEL)))
    received = [each for each in found if each.direction == "received"]
    assert len(received) == 2 * 4
    assert {each.sites for each in received} == {4}
    lines = [each for each in found if each.direction == "sent" and each.round == 1]
    assert {each.site for each in lines} == {f"site-{number}" for number in range(1, 5)}
