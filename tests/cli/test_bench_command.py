"""``flstream bench``: its document, what it refuses, and that it leaves nothing."""

import json
import re
import signal
from pathlib import Path

import psutil
import pytest
from cli_support import started

from flstream.cli.bench import bench
from flstream.cli.bench_plans import ExchangeOptions, codec_plan, mode_plan
from flstream.errors import UsageError

CODECS = {"codecs": "int8", "modes": None}


def results_of(flstream_here, *words):
    done = flstream_here("bench", "--model-size", "100TB", "--repeat", "1", "--json", "-", *words)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [(each["ran"], each["median"]) for each in results] == [(False, None)] * len(results)
    return results


def test_a_codec_that_does_not_fit_is_shown_but_not_run(flstream_here):
    _, int8 = results_of(flstream_here, "--codecs", "int8")
    assert (int8["error"], int8["share"]) == (None, None)


def test_a_mode_that_does_not_fit_is_shown_but_not_run(flstream_here):
    for result in results_of(flstream_here):
        largest = "disk" if result["mode"] == "file" else "memory"
        assert result["predicted"][largest] > 100e12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_size": "3"}, "multiple of 4"),
        ({"modes": "pull,warp"}, "no mode 'warp'; known are pull, native, map, file"),
        ({"chunk_size": "100"}, "multiple of 16"),
        ({"model_size": "8", "tensors": 3}, "--tensors 3"),
        ({"plot": Path("out.xyz")}, "must end in one of .png"),
        ({"json": "absent/out"}, "--json absent/out: cannot be written"),
        ({"network": "10Mbit", "modes": "pull,map"}, "map sends nothing"),
        (CODECS | {"modes": "pull"}, "--modes is for modes; leave it out with --codecs"),
        (CODECS | {"chunk_size": "1MiB,2MiB"}, "codecs are compared at one"),
        (CODECS | {"model_size": "64KiB"}, "bodies of up to 64 KiB go as they are"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    changes, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    none = dict.fromkeys(("tensors", "network", "codecs", "json", "plot"))
    given = {"model_size": "4MB", "clients": 2, "modes": "pull", "chunk_size": "2MiB", **none}
    given |= {"whole": False, "repeat": 1}
    with pytest.raises(UsageError, match=re.escape(words)):
        bench(**given | changes)
    assert list(tmp_path.iterdir()) == []


def test_what_takes_minutes_is_run_once_unless_it_is_told_otherwise():
    def repeats(size, clients, network, repeat):
        return mode_plan(ExchangeOptions(size, clients, network, "2MiB", None, repeat), None).repeat

    assert repeats("5GB", 2, None, None) == 3
    assert repeats("5GB", 4, None, None) == repeats("4MB", 2, "10Mbit,50ms", None) == 1
    assert repeats("5GB", 4, None, 2) == 2
    exchange = ExchangeOptions("250MB", 2, "10Mbit,50ms", "2MiB", None, None)
    sizes = [codec_plan(exchange, "int8", whole=whole).measured_bytes for whole in (False, True)]
    assert sizes == [25_000_000, 250_000_000]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["--modes=pull,native,file", "--codecs=int8"])
def test_cases_are_run_printed_and_written(tmp_path, kind):
    words = ["--model-size", "1MiB", "--network", "100Mbit,2ms", kind, "--repeat", "1"]
    process = started("bench", *words, "--json", "out.json", cwd=tmp_path)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "run 1 of 1" in errors
    assert max(map(len, out.splitlines())) <= 80
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["plan"]["network"]["up"] == 1e8
    assert {"flstream", "python", "torch"} <= set(document["machine"]["versions"])
    for result in document["results"]:
        assert result["runs"] == [result["median"]]
        assert result["median"]["download"] > 8 * (1 << 20) / 1e8
        if kind != "--codecs=int8":
            assert result["ratios"]["exchange_link"] > 1
            assert result["median"]["total_peak_pss"] < result["predicted"]["memory"]
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("at", "number", "option"),
    [
        ("what this machine can do", signal.SIGTERM, "--plot=out.png"),
        ("[2/", signal.SIGINT, "--codecs=topk"),
    ],
)
def test_who_stops_it_finds_nothing_left(at, number, option, tmp_path):
    words = ["--model-size", "256MiB", "--json", "out.json", option]
    with started("bench", *words, cwd=tmp_path) as process:
        assert any(line.startswith(at) for line in process.stderr)
        process.send_signal(number)
        children = psutil.Process(process.pid).children(recursive=True)
        error = process.stderr.read()
        assert process.wait(60) == 130
    assert "stopped" in error
    assert "Traceback" not in error
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert list(tmp_path.iterdir()) == []
