"""Runs of a bench's cases: figures of the measured round, and nothing that is left behind."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flstream.bench.cases import BenchPlan, Case, Need, make_plan
from flstream.bench.measuring import CaseResult, Figures, document, measure
from flstream.errors import UsageError

SIZE = 256 << 10


@pytest.fixture
def inline(monkeypatch):
    """Runs in threads of this process, which take a tenth of the time."""
    in_processes = BenchPlan.job

    def job(plan, case):
        job = in_processes(plan, case)
        return job.model_copy(update={"engine": job.engine.model_copy(update={"type": "inline"})})

    monkeypatch.setattr(BenchPlan, "job", job)


def measured(plan, folder):
    lines = []
    results = measure(plan, folder / "runs", lines.append)
    assert list(folder.iterdir()) == []
    return results, lines


def test_codecs_move_as_much_less_and_lose_as_much_as_they_are_for(tmp_path, inline):
    link = "100Mbit,2ms"
    plan = make_plan(SIZE, clients=2, codecs="delta+shuffle+zstd,topk:0.1", links=[link])
    results, lines = measured(plan, tmp_path)
    assert [line.partition(":")[0] for line in lines[:2]] == [
        "none, run 1 of 1", "delta+shuffle+zstd, run 1 of 1"
    ]  # fmt: skip
    plain, exact, topk = (result.median for result in results)
    assert plain.down_bytes == plain.up_bytes == topk.down_bytes == 2 * SIZE
    assert topk.up_bytes < exact.up_bytes < 2 * SIZE
    assert exact.down_bytes < 0.9 * 2 * SIZE
    for run in (plain, exact, topk):
        assert run.download >= 8 * run.down_bytes / 2 / 1e8
        assert run.upload_and_fold >= 8 * run.up_bytes / 2 / 1e8
    assert results[0].digest == results[1].digest != results[2].digest
    assert results[0].loss == results[1].loss == 0
    assert 0.001 < results[2].loss < 1

    rows = json.loads(json.dumps(document(plan, results)))["results"]
    assert [row["ratio"] for row in rows] == [
        result.median.seconds / plain.seconds for result in results
    ]
    for row, result in zip(rows, results, strict=True):
        assert row["case"] == result.case.name
        assert row["runs"] == [row["median"]]
        assert row["median"]["up_bytes"] == result.median.up_bytes


def test_a_case_that_fails_is_not_repeated_and_others_go_on(tmp_path, inline):
    (tmp_path.parent / "client.py").write_text("raise RuntimeError('no data')\n")
    script = json.dumps(str(tmp_path.parent / "client.py"))
    cases = [Case("bad", (f"train.script={script}",)), Case("good", ())]
    (bad, good), lines = measured(BenchPlan(SIZE, 2, None, cases, 2), tmp_path)
    assert (bad.runs, bad.has_failed, len(good.runs)) == ([], True, 2)
    assert "no data" in bad.reason
    assert lines[0] == f"bad: failed: {bad.reason}"
    assert document(BenchPlan(SIZE, 2, None, cases, 2), [bad, good])["results"][1]["ratio"] == 1


def test_a_case_that_does_not_fit_is_not_run_and_where_none_does_that_is_refused(
    tmp_path, inline, monkeypatch
):
    needs = {"large": Need(100 << 40, 1), "wide": Need(1, 100 << 40)}
    monkeypatch.setattr(BenchPlan, "need", lambda plan, case: needs.get(case.name, Need(1, 1)))
    cases = [Case(name, ()) for name in ("large", "wide", "small")]
    plan = BenchPlan(SIZE, 2, None, cases, 1)
    (large, wide, small), _ = measured(plan, tmp_path)
    assert (len(large.runs), len(wide.runs), len(small.runs)) == (0, 0, 1)
    assert re.fullmatch("needs about 100 TiB, .* available", large.reason)
    assert re.fullmatch("needs about 100 TiB of disk, .* free", wide.reason)
    with pytest.raises(UsageError, match=r"nothing fits here, .*: large needs about 100 TiB"):
        measured(replace(plan, cases=cases[:2]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_and_what_was_there_stays(tmp_path, inline):
    (tmp_path / "runs").write_text("notes")
    plan = BenchPlan(SIZE, 2, None, [Case("pull", ())], 1)
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path / 'runs'} cannot be written")):
        measure(plan, tmp_path / "runs", print)
    assert (tmp_path / "runs").read_text() == "notes"


def test_the_median_is_that_of_each_figure():
    run = Figures(*[1.0] * 14)
    runs = [run, replace(run, seconds=5.0), replace(run, seconds=3.0, rate=7.0)]
    result = CaseResult(SimpleNamespace(name="pull"), Need(1, 1), runs)
    assert result.median == replace(run, seconds=3.0)
