"""A bench of codecs, run: what moves, what is lost, and that nothing is left."""

import math

import pytest
from bench_plans import make_codec_plan

from flstream.bench.codec_cases import parse_codecs
from flstream.bench.codec_compare import compare_codecs
from flstream.bench.document import codec_document
from flstream.bench.exchange import Need, link_seconds
from flstream.bench.model_like import build
from flstream.errors import SimulationError
from flstream.job.link import parse_link

SIZE = 256 << 10
LINK = parse_link("100Mbit,2ms")


class Watcher:
    """Note what a bench has reported."""

    def __init__(self):
        self.runs, self.texts = 0, []

    def planned(self, runs, seconds):
        assert seconds > 0
        self.runs = runs

    def stepped(self, step):
        assert 0 <= step.share <= 1
        if step.text not in self.texts:
            self.texts.append(step.text)


def make_plan(codecs, **changes):
    small = {"model_bytes": 10 * SIZE, "measured_bytes": SIZE, "network": LINK}
    return make_codec_plan(cases=parse_codecs(codecs), **small | changes)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The plan, its results by name, what was reported, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("codecs")
    plan, watcher = make_plan("delta+shuffle+zstd,int8,topk:0.1"), Watcher()
    results = compare_codecs(plan, folder / "runs", watcher)
    return plan, {each.label: each for each in results}, watcher, folder


@pytest.mark.nightly
def test_every_case_is_run_once_without_codecs_first(bench):
    _, results, watcher, _ = bench
    assert watcher.runs == 4
    assert watcher.texts == [f"{label}, run 1 of 1" for label in results]
    assert [*results] == ["none", "delta+shuffle+zstd", "int8", "topk:0.1"]


def test_plain_bodies_move_whole_and_codecs_move_as_much_less_as_they_are_for(bench):
    _, results, _, _ = bench
    runs = {label: each.median for label, each in results.items()}
    assert runs["none"].down_bytes == runs["none"].up_bytes == SIZE
    ups = [runs[name].up_bytes for name in ("topk:0.1", "int8", "delta+shuffle+zstd", "none")]
    assert ups == sorted(set(ups))
    assert runs["int8"].up_bytes == pytest.approx(SIZE / 4, rel=0.05)
    # Models lose nothing, and so move whole under what would lose something.
    assert runs["int8"].down_bytes == runs["topk:0.1"].down_bytes == SIZE
    assert runs["delta+shuffle+zstd"].down_bytes < 0.9 * SIZE


def test_an_exact_codec_loses_nothing_and_others_as_much_as_they_leave_out(bench):
    _, results, _, _ = bench
    errors = {label: each.error for label, each in results.items()}
    assert errors["none"] == errors["delta+shuffle+zstd"] == (True, 0.0)
    assert not errors["int8"].exact
    assert 0.001 < errors["int8"].relative < 0.1
    assert errors["int8"].relative < errors["topk:0.1"].relative < 1


def test_a_transfer_takes_at_least_as_long_as_its_bytes_over_the_link(bench):
    for result in bench[1].values():
        run = result.median
        assert run.download >= link_seconds(LINK, round(run.down_bytes)).down
        assert run.upload_and_fold >= 8 * run.up_bytes / LINK.up
        assert run.round_seconds > run.download + run.upload_and_fold


def test_the_document_has_the_measured_figures_and_those_of_the_whole_model(bench):
    plan, results, _, _ = bench
    found = codec_document(plan, [*results.values()])
    assert found["plan"]["codecs"] == [*results]
    assert found["plan"]["network"] == {
        "up": 1e8,
        "down": 1e8,
        "latency": 0.002,
        "jitter": 0.0,
        "loss": 0.0,
    }
    assert found["plan"]["times"] == 10
    for row in found["results"]:
        run = results[row["codecs"]].median
        assert row["ran"]
        assert row["median"]["up_bytes"] == run.up_bytes
        assert row["whole"]["up_bytes"] == 10 * run.up_bytes
        assert row["whole"]["round_seconds"] == pytest.approx(10 * run.round_seconds)
        assert row["exact"] is (row["codecs"] in ("none", "delta+shuffle+zstd"))
        assert (row["error"] == 0) is row["exact"]
    shares = [row["share"] for row in found["results"]]
    assert shares[0] == 1
    assert max(shares[1:]) < 1
    assert found["results"][2]["down"] == []
    assert found["results"][2]["up"] == ['{ "type" = "int8", "group" = 256 }']


def test_nothing_is_left_behind(bench):
    assert list(bench[3].iterdir()) == []


@pytest.mark.nightly
def test_a_codec_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    # Weights of 1e6 are beyond what float16 holds, but changes are not: the change is made large.
    monkeypatch.setattr("flstream.bench.codec_plan._CLIENT", tmp_path / "client.py")
    (tmp_path / "client.py").write_text(
        "import flstream.client as flare\n"
        "flare.init()\n"
        "while flare.is_running():\n"
        "    model = flare.receive()\n"
        "    for tensor in model.params.values():\n"
        "        tensor += 1e6\n"
        "    flare.send(flare.FLModel(params=model.params))\n"
    )
    plan = make_plan("cast:f16,zstd", network=None, repeat=2)
    plain, cast, zstd = compare_codecs(plan, tmp_path / "runs", Watcher())
    assert cast.runs == []
    assert "f16" in cast.failure
    assert len(plain.runs) == len(zstd.runs) == 2
    assert zstd.error.exact
    row = codec_document(plan, [plain, cast, zstd])["results"][1]
    assert (row["ran"], row["median"], row["error"], row["share"]) == (False, None, None, None)


def test_nothing_is_compared_with_an_exchange_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr("flstream.bench.codec_plan._CLIENT", tmp_path / "client.py")
    (tmp_path / "client.py").write_text("raise RuntimeError('no data')\n")
    with pytest.raises(SimulationError, match=r"exchange without codecs failed: .*no data"):
        compare_codecs(make_plan("int8", network=None), tmp_path / "runs", Watcher())
    assert not (tmp_path / "runs").exists()


def test_what_has_no_room_is_not_run(tmp_path, monkeypatch):
    need = Need(memory=1 << 60, server=1, client=1, disk=1)
    monkeypatch.setattr("flstream.bench.codec_plan.CodecBenchPlan.need", lambda *_: need)
    results = compare_codecs(make_plan("int8"), tmp_path / "runs", Watcher())
    assert [each.runs for each in results] == [[], []]
    assert [each.failure for each in results] == [None, None]


def test_the_disk_has_the_plain_models_beside_a_run(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("flstream.bench.running.fits", lambda need, room: seen.append(need))
    compare_codecs(make_plan("int8"), tmp_path / "runs", Watcher())
    # Four models of the run at least: the initial one, two rounds', and the next one's file.
    assert all(need.disk >= 5 * SIZE for need in seen)


def test_equal_tensors_are_measured_too():
    model = build(SIZE, tensors=5)
    assert [len(tensor) for tensor in model.values()] == [math.ceil(65536 / 5)] + [13107] * 4
