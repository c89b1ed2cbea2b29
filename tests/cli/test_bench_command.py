"""``flstream bench`` as a subprocess."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cli_support import environment

from flstream.cli.bench import bench
from flstream.cli.bench_plans import ExchangeOptions, codec_plan, mode_plan
from flstream.errors import UsageError

CODECS = {"codecs": "int8", "modes": None}


def test_a_mode_that_does_not_fit_is_shown_but_not_run(flstream):
    done = flstream("bench", "--model-size", "100TB", "--repeat", "1", "--json", "-")
    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout)["results"]:
        assert not result["ran"]
        assert result["median"] is None
        if result["mode"] == "file":
            assert result["predicted"]["disk"] > 200e12
        else:
            assert result["predicted_bytes"] > 100e12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_size": "much"}, "--model-size much"),
        ({"model_size": "3"}, "multiple of 4"),
        ({"modes": "pull,warp"}, "no mode 'warp'; known are pull, push, native, map, file"),
        ({"modes": ","}, "no mode is named"),
        ({"chunk_size": "100"}, "multiple of 16"),
        ({"chunk_size": "2MiB,,1MiB"}, "--chunk-size"),
        ({"model_size": "8", "tensors": 3}, "--tensors 3"),
        ({"plot": Path("out.xyz")}, "must end in one of .png"),
        ({"plot": Path("absent/out.png")}, "--plot absent/out.png: cannot be written"),
        ({"json": "absent/out"}, "--json absent/out: cannot be written"),
        ({"network": "10MB"}, "--network 10MB: '10MB' in the link"),
        ({"network": "10Mbit", "modes": "pull,map"}, "map sends nothing"),
        ({"whole": True}, "--whole is for --codecs"),
        (CODECS | {"codecs": "topq"}, "did you mean topk?"),
        (CODECS | {"modes": "pull"}, "--modes is for modes; leave it out with --codecs"),
        (CODECS | {"plot": Path("out.png")}, "--plot is for modes"),
        (CODECS | {"chunk_size": "1MiB,2MiB"}, "codecs are compared at one"),
        (CODECS | {"model_size": "64KiB"}, "bodies of up to 64 KiB go as they are"),
        (CODECS | {"network": "1kbit", "tensors": 10**6}, "--tensors 1000000"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    changes, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = {
        "model_size": "4MB",
        "clients": 2,
        "modes": "pull",
        "chunk_size": "2MiB",
        "tensors": None,
        "network": None,
        "codecs": None,
        "whole": False,
        "repeat": 1,
        "json": None,
        "plot": None,
    }
    with pytest.raises(UsageError, match=re.escape(words)):
        bench(**given | changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("clients", "repeat", "expected"), [(2, None, 3), (4, None, 1), (4, 2, 2)])
def test_what_takes_minutes_is_run_once_unless_it_is_told_otherwise(clients, repeat, expected):
    exchange = ExchangeOptions("5GB", clients, None, "2MiB", None, repeat)
    assert mode_plan(exchange, "pull").repeat == expected


def test_over_a_link_one_run_is_enough():
    exchange = ExchangeOptions("4MB", 2, "10Mbit,50ms", "2MiB", None, None)
    assert mode_plan(exchange, None).repeat == codec_plan(exchange, "int8", whole=False).repeat == 1
    assert mode_plan(exchange._replace(repeat=5), None).repeat == 5


def test_a_long_model_is_measured_whole_only_if_that_is_asked_for():
    exchange = ExchangeOptions("250MB", 2, "10Mbit,50ms", "2MiB", None, None)
    sizes = [codec_plan(exchange, "int8", whole=whole).measured_bytes for whole in (False, True)]
    assert sizes == [25_000_000, 250_000_000]


@pytest.mark.nightly
def test_modes_over_a_link_take_at_least_as_long_as_it(flstream):
    words = ["--model-size", "1MiB", "--network", "100Mbit,2ms", "--modes", "pull"]
    done = flstream("bench", *words, "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["plan"]["network"]["up"] == 1e8
    (result,) = found["results"]
    assert result["median"]["download"] > 8 * (1 << 20) / 1e8
    assert result["ratios"]["exchange_link"] > 1


@pytest.mark.nightly
def test_codecs_over_a_link_are_compared_in_80_columns(flstream, tmp_path):
    words = ["--model-size", "1MiB", "--network", "100Mbit,2ms", "--codecs", "int8"]
    done = flstream("bench", *words, "--json", "out.json")
    assert done.returncode == 0, done.stderr
    assert "[2/2] int8, run 1 of 1" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    plain, int8 = json.loads((tmp_path / "out.json").read_text())["results"]
    assert int8["median"]["up_bytes"] < plain["median"]["up_bytes"] / 3
    assert 0 < int8["error"] < 0.1
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]


def test_the_help_has_every_option(flstream_here):
    done = flstream_here("bench", "--help")
    assert done.returncode == 0
    for option in ("--network", "--codecs", "--whole", "--repeat"):
        assert option in done.stdout


@pytest.mark.parametrize("words", [["--model-size", "4MB", "--json", "absent/out"], []])
def test_a_refusal_is_a_sentence_and_exit_status_2(words, flstream):
    done = flstream("bench", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert ("--json" if words else "--model-size") in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("at", "number", "options"),
    [
        ("what this machine can do", signal.SIGTERM, ["--plot", "out.png"]),
        ("[1/", signal.SIGINT, ["--plot", "out.png"]),
        ("[2/", signal.SIGINT, ["--codecs", "topk"]),
    ],
)
def test_who_stops_it_finds_nothing_left(at, number, options, tmp_path):
    words = ["bench", "--model-size", "256MiB", "--json", "out.json", *options]
    with subprocess.Popen(
        [sys.executable, "-m", "flstream", *words],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:
            if line.startswith(at):
                break
        process.send_signal(number)
        children = psutil.Process(process.pid).children(recursive=True)
        error = process.stderr.read()
        assert process.wait(60) == 130
    assert "stopped" in error
    assert "Traceback" not in error
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert list(tmp_path.iterdir()) == []
