"""The table of a bench: true figures, at any width."""

import io

import pytest

from flstream.bench.cases import Need, make_plan
from flstream.bench.measuring import CaseResult, Figures
from flstream.report.bench_table import print_bench
from flstream.report.console import make_console

MIB, GIB = 1 << 20, 1 << 30


def figures(seconds, server):
    return Figures(
        seconds=seconds, download=2.0, train=0.5, upload_and_fold=2.0, checkpoint=0.1,
        down_bytes=2 * GIB, up_bytes=GIB, direct_bytes=GIB, requests=1060, rate=0.75 * GIB,
        server_over_idle=server, client_over_idle=GIB, total_pss=3 * GIB, wall_seconds=30.0,
    )  # fmt: skip


def make_results(**options):
    """A plan, and results of which native was not run and file has failed."""
    plan = make_plan(GIB, clients=2, **options)
    results = []
    for number, case in enumerate(plan.cases, 1):
        result = CaseResult(case, Need(41 * GIB, GIB), [figures(4.0 * number, 16.25 * MIB)])
        result.digest, result.loss = "same" if number < 3 else "other", 0.0123
        if case.name == "native":
            result.runs, result.reason = [], "needs about 41 GiB, 21 GiB available"
        if case.name == "file":
            result.reason, result.has_failed = "the server process died", True
        results.append(result)
    return plan, results


def printed(plan, results, width=80):
    file = io.StringIO()
    print_bench(make_console(file=file, width=width), plan, results)
    return file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_has_every_figure_and_fits_the_terminal(width):
    text = printed(*make_results(modes="pull,native,file"), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b[" not in text
    cells = " ".join(line.removeprefix("file").strip() for line in lines if line[:5] == "file ")
    moved = "12.00 3.00 2 GiB 1 GiB" + (" 1 GiB 1,060 768 MiB/s" if width > 40 else "")
    assert " ".join(cells.split()) == f"{moved} 16.2 MiB 1 GiB 3 GiB"
    sentences = " ".join(text.split())
    assert ("not shown at this width: direct, requests, rate" in sentences) is (width == 40)
    assert "A model of 1 GiB, 2 clients: medians of 3 runs" in sentences
    assert "native: not run: needs about 41 GiB, 21 GiB available" in sentences
    assert "file: failed: the server process died" in sentences
    assert "error" not in text


def test_codecs_are_exact_by_their_digest_or_have_an_error():
    plan, results = make_results(codecs="zstd,int8")
    results[2].reason = "needs about 41 GiB, 21 GiB available"
    text = printed(plan, results, 200)
    last = {line.split()[0]: line.split()[-1] for line in text.splitlines()[2:6] if line}
    assert last == {"case": "error", "none": "exact", "zstd": "exact", "int8": "1.23%"}
    assert "int8: only 1 run: needs about 41 GiB, 21 GiB available" in text
