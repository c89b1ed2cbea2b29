"""What a bench of codecs prints: tables that fit, and sentences that are true of what was run."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from bench_plans import MIB, make_codec_plan

from flstream.bench.codec_cases import parse_codecs
from flstream.bench.codec_compare import CodecMeasurement, CodecResult, RelativeError
from flstream.bench.exchange import Need
from flstream.job.link import parse_link
from flstream.report.bench.codec_tables import print_codecs
from flstream.report.console import make_console
from flstream.simulation.forecasting.fitting import Available

RUN = CodecMeasurement(
    down_bytes=25 * MIB,
    up_bytes=25 * MIB,
    download=20.0,
    train=1.0,
    upload_and_fold=20.5,
    checkpoint=0.5,
    wall_seconds=90.0,
)


def make_results(plan):
    """Results in which each case moves half of the one before up, and the exact one is exact."""
    found = []
    for number, case in enumerate(plan.cases):
        part = 0.5**number
        run = replace(RUN, up_bytes=part * RUN.up_bytes, upload_and_fold=part * RUN.upload_and_fold)
        error = RelativeError(case.name in ("none", "zstd"), 0.0 if number < 2 else 0.0123)
        need = Need(memory=4 << 30, server=1, client=1, disk=1 << 30)
        room = Available(21 << 30, 90 << 30, Path("runs"))
        found.append(CodecResult(case, case.name, need, room, [run] * plan.repeat, None, error))
    return found


def make_plan(**changes):
    return make_codec_plan(network=parse_link("10Mbit,50ms"), **changes)


def printed(plan, results, width=80):
    file = io.StringIO()
    print_codecs(make_console(file=file, width=width), plan, results)
    return file.getvalue()


def in_one_line(text):
    return " ".join(text.split())


@pytest.mark.parametrize("codecs", ["all", "topk:0.0123456789+shuffle+zstd:19,ternary:0.05"])
@pytest.mark.parametrize("size", [25 * MIB, 1023 * MIB + 999_000])
def test_no_line_is_wider_than_80_columns_and_no_cell_is_cut(codecs, size):
    plan = make_plan(cases=parse_codecs(codecs), model_bytes=10 * size, measured_bytes=size)
    results = make_results(plan)
    for result in results:
        result.runs[0] = replace(result.runs[0], down_bytes=size, download=1234.56, train=999.0)
    text = printed(plan, results)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_the_first_table_is_measured_and_the_second_is_it_times_the_ratio():
    plan = make_plan()
    lines = printed(plan, make_results(plan)).splitlines()
    measured, whole = (line.split() for line in lines if line.startswith("int8 "))
    assert " ".join(measured) == "int8 25 MiB 6.2 MiB 62.5% 20.00 5.12 26.62 1.23%"
    assert " ".join(whole) == "int8 250 MiB 62.5 MiB 3m 20s 51.2 s 4m 26s"
    first = lines.index("Measured with 25 MiB: round 2, bytes of one client")
    assert lines.index("For 250 MiB: the same, times 10") > first


def test_the_note_says_that_the_second_table_is_not_measured():
    plan = make_plan()
    text = in_one_line(printed(plan, make_results(plan)))
    assert "The second table is not measured: it is the first one times 10" in text
    assert "--whole measures it" in text


def test_a_model_that_was_measured_whole_has_one_table():
    plan = make_plan(model_bytes=25 * MIB)
    text = in_one_line(printed(plan, make_results(plan)))
    assert "For 25 MiB: the same" not in text
    assert "second table" not in text


def test_the_links_own_limit_is_said_where_there_is_a_link():
    plan = make_plan()
    text = in_one_line(printed(plan, make_results(plan)))
    assert "Each link, emulated: up 10 Mbit/s, down 10 Mbit/s, latency 50 ms." in text
    assert "For 25 MiB it takes 21.0 s down and 21.0 s up at least." in text
    plan = replace(plan, network=None)
    text = in_one_line(printed(plan, make_results(plan)))
    assert "emulated" not in text
    assert "seconds on the machine's own pipe" in text


def test_exact_is_said_of_what_has_the_digest_alone():
    plan = make_plan()
    results = make_results(plan)
    lines = printed(plan, results).splitlines()
    start = lines.index("Measured with 25 MiB: round 2, bytes of one client")
    last = [line.split()[-1] for line in lines[start + 2 : start + 6]]
    assert last == ["-", "exact", "1.23%", "1.23%"]
    results[1].error = RelativeError(exact=False, relative=0.25)
    assert "exact  " not in printed(plan, results)
    assert "25.0%" in printed(plan, results)


def test_the_verdict_names_the_shortest_round_of_either_kind():
    plan = make_plan()
    text = in_one_line(printed(plan, make_results(plan)))
    # 42 s without codecs; 21.5 s and a half, or an eighth, of 20.5 s.
    assert (
        "The shortest round: topk takes 57% of the plain one's seconds, with a loss; "
        "zstd takes 76% of the plain one's seconds, without."
    ) in text


def test_what_failed_or_had_no_room_is_told():
    plan = make_plan()
    results = make_results(plan)
    for result in results[1:]:
        result.runs.clear()
    results[1].failure = "site-1 has failed"
    results[2].available = replace(results[2].available, memory=2 << 30)
    text = printed(plan, results)
    assert "zstd: failed: site-1 has failed" in text
    assert "int8: not run, needs about 4 GiB, 2 GiB available" in text
    assert "shortest" not in text


def test_what_comes_later_is_said_where_a_codec_leaves_numbers_out():
    for codecs, expected in (("topk", True), ("int8", False)):
        plan = make_plan(cases=parse_codecs(codecs))
        text = in_one_line(printed(plan, make_results(plan)))
        assert ("they send with later updates" in text) is expected
