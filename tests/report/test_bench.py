"""What a bench prints and leaves: true figures in tables that fit, pictures, whole files."""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from bench_plans import GIB, MIB, make_codec_plan, make_plan

from flstream.bench.codec_cases import parse_codecs
from flstream.bench.codec_compare import CodecMeasurement, CodecResult, RelativeError
from flstream.bench.compare import Comparison, Result
from flstream.bench.exchange import Need
from flstream.bench.limits import MachineLimits
from flstream.bench.measurement import Measurement, Trace
from flstream.errors import UsageError
from flstream.job.link import parse_link
from flstream.report.bench.codec_tables import print_codecs
from flstream.report.bench.files import PICTURES, Target
from flstream.report.bench.plot import draw_memory
from flstream.report.bench.tables import print_comparison
from flstream.report.bench.verdict import shortfalls, verdict
from flstream.report.console import make_console
from flstream.simulation.forecasting.fitting import Available

LIMITS = MachineLimits(memcpy=8 * GIB, pipe={2 * MIB: 2 * GIB}, disk=0.5 * GIB)
PULL = Measurement(
    download=2.0, upload_and_fold=4.0, checkpoint=1.0, train=0.1, requests=60,
    server_idle_rss=160 * MIB, server_idle_uss=6 * MIB,
    server_peak_rss=16 * MIB, server_peak_uss=15 * MIB,
    client_idle_rss=160 * MIB, client_idle_uss=6 * MIB,
    client_peak_rss=GIB, client_peak_uss=GIB - MIB,
    total_peak_pss=3 * GIB, wall_seconds=30.0,
)  # fmt: skip
NATIVE = replace(
    PULL, download=20.0, upload_and_fold=10.0, server_peak_rss=3 * GIB, total_peak_pss=9 * GIB
)
ROOM = Available(21 * GIB, 90 * GIB, Path("runs"))


def make_results(plan, *, native_fits=True):
    """Results in round numbers, so that what is printed can be worked out by hand."""
    results = []
    for case in plan.cases:
        is_native = case.mode == "native"
        need = Need((41 if is_native else 4) * GIB, 64 * MIB, 2 * GIB, 5 * GIB)
        found = Result(case, plan.label(case), need, ROOM)
        if native_fits or not is_native:
            found.runs += [NATIVE if is_native else PULL] * plan.repeat
            found.trace = Trace([(0.0, 0), (1.0, 16 * MIB)], [(0.0, 0), (1.5, GIB)])
        results.append(found)
    return results


def printed(plan, results, width=80, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_comparison(make_console(file=file, width=width), plan, Comparison([LIMITS], results))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("native_fits", [True, False])
def test_tables_have_every_figure_of_a_case_and_fit_the_terminal(width, native_fits):
    plan = make_plan(chunk_sizes=[256 << 10, 2 * MIB])
    text = printed(plan, make_results(plan, native_fits=native_fits), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "\x1b[" not in text
    seconds, memory, *_ = (
        line.split() for line in text.splitlines() if line.startswith("pull 2 MiB ")
    )
    # 2 clients x 1 GiB in 2 s down and in 4 s up; the pipe takes 1 s one way, the disk 2 s.
    expected = ["2.00", "1,024", "4.00", "512", "1.00", "60", "3.0", "0.50"]
    assert seconds[3:] == expected
    assert " ".join(memory[3:]) == "16 MiB 15 MiB 1 GiB 1023 MiB 3 GiB 4 GiB"
    shortfall = "native: not run, needs about 41 GiB, 21 GiB available"
    assert (shortfall in text) is not native_fits
    assert printed(plan, make_results(plan), encoding="ascii").isascii()


def test_the_verdict_says_what_was_saved_and_what_did_not_run():
    plan = make_plan(modes=["pull", "native"], repeat=3)
    sentence = verdict(plan, make_results(plan), LIMITS)
    assert "67% less memory in all and 192 times less in the server" in sentence
    assert "3.0 times what a bare pipe would" in sentence
    pull, native = results = make_results(plan, native_fits=False)
    assert "needs about 41 GiB, 21 GiB available" in verdict(plan, results, LIMITS)
    pull.runs, pull.available = pull.runs[:1], replace(ROOM, memory=2 * GIB, disk=None)
    native.failure = "the server process died"
    assert shortfalls(3, results) == [
        "pull: only 1 run, needs about 4 GiB, 2 GiB available",
        "native: failed: the server process died",
    ]
    pull.runs, pull.available = [], replace(ROOM, disk=3 * GIB)
    assert "5 GiB of disk, 3 GiB free" in shortfalls(3, results)[0]
    assert "Nothing was run" in printed(plan, results)


CODEC_RUN = CodecMeasurement(
    down_bytes=25 * MIB, up_bytes=25 * MIB, download=20.0, train=1.0, upload_and_fold=20.5,
    checkpoint=0.5, wall_seconds=90.0,
)  # fmt: skip


def print_codec_results(plan, change=lambda results: None):
    """Print results in which each case moves half as much up, and the first ones are exact."""
    results = []
    for number, case in enumerate(plan.cases):
        part = 0.5**number
        run = replace(CODEC_RUN, up_bytes=part * 25 * MIB, upload_and_fold=part * 20.5)
        error = RelativeError(case.name in ("none", "zstd"), 0.0 if number < 2 else 0.0123)
        need = Need(memory=4 * GIB, server=1, client=1, disk=GIB)
        results.append(CodecResult(case, case.name, need, ROOM, [run], None, error))
    change(results)
    file = io.StringIO()
    print_codecs(make_console(file=file, width=80), plan, results)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    return lines, " ".join(file.getvalue().split())


def test_codecs_have_a_measured_table_and_one_for_the_whole_model():
    lines, text = print_codec_results(make_codec_plan(network=parse_link("10Mbit,50ms")))
    measured, whole = (" ".join(line.split()) for line in lines if line.startswith("int8 "))
    assert measured == "int8 25 MiB 6.2 MiB 62.5% 20.00 5.12 26.62 1.23%"
    assert whole == "int8 250 MiB 62.5 MiB 3m 20s 51.2 s 4m 26s"
    assert "up 10 Mbit/s, down 10 Mbit/s, latency 50 ms" in text
    assert "For 25 MiB it takes 21.0 s down and 21.0 s up" in text
    # 42 s without codecs; 21.5 s and a half, or an eighth, of 20.5 s.
    assert "topk takes 57% of the plain one's seconds" in text
    assert "zstd takes 76% of the plain one's seconds" in text
    _, text = print_codec_results(make_codec_plan(model_bytes=25 * MIB))
    assert "second table" not in text
    assert "emulated" not in text


def test_codecs_of_any_length_fit_and_failures_are_told():
    def change(results):
        for found in results[1:]:
            found.runs.clear()
        results[1].failure = "site-1 has failed"
        results[2].available = replace(ROOM, memory=2 * GIB)

    print_codec_results(make_codec_plan(cases=parse_codecs("all"), model_bytes=1 << 40))
    _, text = print_codec_results(make_codec_plan(), change)
    assert "zstd: failed: site-1 has failed" in text
    assert "int8: not run, needs about 4 GiB, 2 GiB available" in text
    assert "shortest" not in text


def test_a_picture_is_drawn_of_what_was_run(tmp_path):
    plan, path = make_plan(chunk_sizes=[1 << 20, 2 << 20]), tmp_path / "plot"
    heads = {".png": b"PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    assert heads.keys() == set(PICTURES)
    for kind, head in heads.items():
        draw_memory(plan, make_results(plan, native_fits=False), path, kind)
        assert head in path.read_bytes()[:200]
    for label in ("the model 1 GiB", "server 16 MiB", "needs about"):
        assert label in path.read_text()


def test_a_file_is_whole_or_as_it_was_and_a_pipe_is_written_to(tmp_path):
    path, pipe = tmp_path / "out.json", tmp_path / "pipe"
    path.write_text("before")

    def fail(temporary):
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Target("--json", path).write(fail)
    assert path.read_text() == "before"
    Target("--json", path).write(lambda temporary: temporary.write_text("after"))
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    Target("--json", pipe).write(lambda path: path.write_text("figures"))
    assert os.read(reader, 100) == b"figures"
    os.close(reader)
    assert pipe.is_fifo()
    for name in ("absent/out.json", ".", "out.json/below"):
        with pytest.raises(UsageError, match="--json"):
            Target("--json", tmp_path / name)
