"""What a bench prints: tables and bars that fit, and a verdict that is true of what was run."""

import io
from dataclasses import replace

import pytest
from bench_results import LIMITS, MIB, make_plan, make_results
from rich.console import Console

from flstream.bench.compare import Comparison
from flstream.job.link import NetworkLink
from flstream.report.bench.bars import Bar, draw
from flstream.report.bench.tables import print_comparison
from flstream.report.bench.verdict import shortfalls, verdict
from flstream.report.console import make_console


def printed(plan, results, width=80, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_comparison(make_console(file=file, width=width), plan, Comparison([LIMITS], results))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("native_fits", [True, False])
def test_no_line_is_wider_than_the_terminal(width, native_fits):
    plan = make_plan(chunk_sizes=[256 << 10, 2 * MIB, 16 * MIB])
    text = printed(plan, make_results(plan, native_fits=native_fits), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "push 256 KiB" in text


def test_tables_have_every_figure_of_a_case():
    plan = make_plan()
    lines = printed(plan, make_results(plan)).splitlines()
    seconds, memory, *_ = (line.split() for line in lines if line.startswith("pull "))
    # 2 clients x 1 GiB in 2 s down and in 4 s up; the pipe takes 1 s one way, the disk 2 s.
    assert seconds == ["pull", "2.00", "1,024", "4.00", "512", "1.00", "60", "3.0", "0.50"]
    assert " ".join(memory) == "pull 16 MiB 15 MiB 1 GiB 1023 MiB 3 GiB 4 GiB"


def test_over_a_link_its_own_limit_takes_the_place_of_the_pipes():
    link = NetworkLink(up=2 * 8 * MIB * 100, down=8 * MIB * 100, latency=0.05)
    plan = make_plan(network=link)
    text = printed(plan, make_results(plan))
    assert "x pipe" not in text
    pull = next(line.split() for line in text.splitlines() if line.startswith("pull "))
    # 1 GiB takes 10.24 s down and 5.12 s up, and the latency twice; both together took 6 s.
    assert pull[7] == "0.39"
    sentences = " ".join(text.split())
    assert "For 1 GiB it takes 10.3 s down and 5.2 s up at least." in sentences
    assert sentences.endswith("its transfers took 0.39 times what the link takes at least.")


def test_the_limits_are_named_by_read_size_if_there_are_several():
    plan = make_plan()
    assert "bare pipe 2 GiB/s." in printed(plan, make_results(plan)).replace("\n", " ")


def test_native_that_does_not_fit_is_shown_with_its_need():
    plan = make_plan(modes=["pull", "native"])
    results = make_results(plan, native_fits=False)
    text = printed(plan, results)
    assert "native: not run, needs about 41 GiB, 21 GiB available" in text
    assert "about 9 GiB, predicted" in text
    assert "where native needs about 41 GiB, 21 GiB available" in text.replace("\n", " ")


def test_a_lack_of_disk_is_told_from_one_of_memory():
    plan = make_plan(modes=["file"])
    (result,) = make_results(plan)
    result.runs.clear()
    result.available = replace(result.available, disk=3 << 30)
    sentence = "file: not run, needs about 5 GiB of disk, 3 GiB free"
    assert shortfalls(plan.repeat, [result]) == [sentence]


def test_the_verdict_says_what_was_saved_and_how_close_to_the_limit_it_ran():
    plan = make_plan()
    sentence = verdict(plan, make_results(plan), LIMITS)
    assert sentence == (
        "Streaming with pull took 67% less memory in all and 192 times less in the server "
        "(16 MiB) than native; its transfers took 3.0 times what a bare pipe would."
    )


def test_a_failure_is_a_failure():
    plan = make_plan(modes=["pull", "native"])
    results = make_results(plan)
    results[1].runs.clear()
    results[1].failure = "the server process died"
    assert shortfalls(plan.repeat, results) == ["native: failed: the server process died"]
    assert "where native failed" in verdict(plan, results, LIMITS)


def test_a_case_that_could_not_be_repeated_is_told():
    plan = make_plan(modes=["pull"], repeat=3)
    (result,) = make_results(plan)
    result.runs = result.runs[:1]
    result.available = replace(result.available, memory=2 << 30, disk=None)
    sentence = "pull: only 1 run, needs about 4 GiB, 2 GiB available"
    assert shortfalls(plan.repeat, [result]) == [sentence]


@pytest.mark.parametrize("modes", [["pull"], ["native"]])
def test_one_mode_alone_has_a_verdict_too(modes):
    plan = make_plan(modes=modes)
    assert verdict(plan, make_results(plan), LIMITS).endswith(".")


def test_nothing_run_is_said():
    plan = make_plan(modes=["pull"])
    (result,) = make_results(plan)
    result.runs.clear()
    assert "Nothing was run" in printed(plan, [result])


def test_bars_are_drawn_in_ascii_where_there_is_nothing_else():
    plan = make_plan()
    text = printed(plan, make_results(plan, native_fits=False), encoding="ascii")
    assert "####" in text
    assert "...." in text


def test_bars_are_on_one_scale_and_what_is_small_is_seen():
    console = Console(width=80, file=io.StringIO())
    bars = [Bar("a", (100.0,), "100", ""), Bar("b", (50.0,), "50", ""), Bar("c", (0.01,), "0", "")]
    a, b, c = (line.plain for line in draw(console, bars))
    assert abs(a.count("█") - 2 * b.count("█")) <= 1
    assert "▏" in c
    assert len(a) <= 80


def test_the_parts_of_a_bar_end_where_their_sum_does():
    console = Console(width=80, file=io.StringIO())
    (whole, parts) = draw(console, [Bar("a", (3.0,), "x", ""), Bar("b", (1.0, 1.0, 1.0), "x", "")])
    lengths = [sum(line.plain.count(sign) for sign in "█▓░") for line in (whole, parts)]
    assert lengths[0] == lengths[1]


def test_colour_is_only_for_terminals_that_want_it(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    plan = make_plan()
    assert "\x1b[" not in printed(plan, make_results(plan))
