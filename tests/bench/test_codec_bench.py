"""A bench of codecs, run: what moves, what is lost, and that nothing is left."""

import pytest
from bench_plans import make_codec_plan

from flstream.bench.codec_cases import parse_codecs
from flstream.bench.codec_compare import compare_codecs
from flstream.bench.codec_plan import CodecBenchPlan
from flstream.bench.document import codec_document
from flstream.bench.exchange import link_seconds
from flstream.errors import SimulationError
from flstream.job.link import parse_link

SIZE = 256 << 10
LINK = parse_link("100Mbit,2ms")


class Watcher:
    """Watches a bench, and notes nothing."""

    def planned(self, runs, seconds):
        assert seconds > 0

    def stepped(self, step):
        assert 0 <= step.share <= 1


def make_plan(codecs):
    small = {"model_bytes": 10 * SIZE, "measured_bytes": SIZE, "network": LINK}
    return make_codec_plan(cases=parse_codecs(codecs), **small)


def test_codecs_move_as_much_less_and_lose_as_much_as_they_are_for(tmp_path, monkeypatch):
    in_processes = CodecBenchPlan.job

    def inline(plan, case):
        job = in_processes(plan, case)
        return job.model_copy(update={"engine": job.engine.model_copy(update={"type": "inline"})})

    monkeypatch.setattr(CodecBenchPlan, "job", inline)
    plan = make_plan("delta+shuffle+zstd,topk:0.1")
    results = compare_codecs(plan, tmp_path / "runs", Watcher())
    assert list(tmp_path.iterdir()) == []
    plain, exact, topk = (each.median for each in results)
    assert plain.down_bytes == plain.up_bytes == topk.down_bytes == SIZE
    assert topk.up_bytes < exact.up_bytes < SIZE
    assert exact.down_bytes < 0.9 * SIZE
    for run in (plain, exact, topk):
        assert run.download >= link_seconds(LINK, round(run.down_bytes)).down
        assert run.upload_and_fold >= 8 * run.up_bytes / LINK.up
    assert [each.error.exact for each in results] == [True, True, False]
    assert 0.001 < results[2].error.relative < 1

    found = codec_document(plan, results)
    assert found["plan"]["times"] == 10
    for row, result in zip(found["results"], results, strict=True):
        assert row["median"]["up_bytes"] == result.median.up_bytes
        assert row["whole"]["up_bytes"] == 10 * result.median.up_bytes
    assert found["results"][0]["share"] == 1
    assert found["results"][2]["down"] == []
    assert all(row["share"] < 1 for row in found["results"][1:])


@pytest.mark.nightly
def test_nothing_is_compared_with_an_exchange_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr("flstream.bench.codec_plan._CLIENT", tmp_path / "client.py")
    (tmp_path / "client.py").write_text("raise RuntimeError('no data')\n")
    with pytest.raises(SimulationError, match=r"exchange without codecs failed: .*no data"):
        compare_codecs(make_plan("int8"), tmp_path / "runs", Watcher())
    assert not (tmp_path / "runs").exists()
