"""What the journal says of each body that a site received or sent is what has happened."""

from training_scripts import QUIET, plain

from flstream.inspection.site_bodies import SiteRequest, examine_site
from flstream.runs.body_records import RECORDED, read_bodies
from flstream.runs.journal import read_history

MODEL = """
import torch


def build():
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(100, 100, generator=generator),
        "norm": torch.randn(100, generator=generator),
        "zeros": torch.zeros(100_000, dtype=torch.uint8),
    }
"""
CHANGES = """
    params = {name: each.clone() for name, each in params.items()}
    params["w"] *= 1 + 1e-6 * torch.randn(params["w"].shape)
    metrics = {"loss": 0.5}
    """
FULL = ("pulled", "FULL")


def run_of(jobs, *overrides, script=CHANGES):
    run = jobs.run(plain(script), *overrides, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    return run


def records_of(run):
    """The records, which add up to what the run has cost."""
    events, transfer = run.directory.events, run.summary.transfer
    found = list(read_bodies(events, read_history(events, note_lines_of=RECORDED)))
    for direction, whole in (("received", transfer.down), ("sent", transfer.up)):
        ours = [each for each in found if each.direction == direction]
        # What came for several sites at once moved once.
        assert sum(each.bytes / each.sites for each in ours) == whole.bytes
        assert sum(each.reused / each.sites for each in ours) == whole.reused
    return found


def forms(found, direction):
    return {each.tags for each in found if (each.direction, each.task) == (direction, "train")}


def test_a_plain_model_is_pulled_as_it_is(jobs):
    run = run_of(jobs, QUIET, "streaming.reuse=off")
    found, size = records_of(run), run.summary.model.bytes
    assert len(found) == 2 * 2 * 2
    assert (forms(found, "received"), forms(found, "sent")) == ({("pulled",)}, {FULL})
    assert all((each.size, each.bytes, each.not_sent) == (size, size, 0) for each in found)
    digests = [model.digest for model in read_history(run.directory.events).models]
    for each in found:
        assert each.model == digests[each.round - 1]
        assert each.made == (each.round - 1 if each.direction == "received" else each.round)
        ends = ("server", each.site) if each.direction == "received" else (each.site, "server")
        assert (each.origin, each.receiver) == ends


def test_tensors_that_a_codec_encodes_have_other_keys_and_a_part_is_known_as_one(jobs):
    part = CHANGES + "del params['norm']\n    meta['partial'] = True\n"
    codecs = "streaming.codecs={up=[int8],down=[int4],require_lossless=[norm]}"
    run = run_of(jobs, codecs, "streaming.reuse=off", script=part)
    found = examine_site(SiteRequest(run.directory.path, "site-2", 2))
    received, sent = (each for each in found.keyed if each.body.task == "train")
    keys = {key.tensor: key for key in received.keys}
    assert keys["w"][1:] == ("server", 1, False, ("model", "pulled", "int4"))
    assert keys["norm"].tags == keys["zeros"].tags == ("model", "pulled", "lossless")
    keys = {key.tensor: key for key in sent.keys}
    assert keys.keys() == {"w", "zeros"}
    assert keys["w"][1:] == ("site-2", 2, False, ("trained", *FULL, "partial", "int8"))
    assert sent.body.not_sent == sent.body.size - sent.body.bytes > 0
    assert {(key.tensor, key.report, key.tags) for key in found.metrics} == {
        ("loss", True, ("metric", "train")),
        ("score", True, ("metric", "evaluate")),
    }
